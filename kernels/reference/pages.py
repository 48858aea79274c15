"""Float64 reference of rows that read some pages of their paths: the mass of each, and the result.

Works from the batch alone, path by path, as `attend_reference`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.page_limits import BLOCK
from radixlang.kernels.plan.tree_batch import TreeBatch
from radixlang.kernels.reference.attention import partial_reference, path_of, visible_keys


def page_shares(
    q: Tensor, k: Tensor, batch: TreeBatch, row: int, options: AttentionOptions
) -> Tensor:
    """The share of a row's mass that lies in each page up to its own, [num_heads, num_pages].

    q [num_tokens, num_heads, head_dim]; k [num_slots, num_kv_heads, head_dim] with the new tokens
    already written. Sinks take their part of the mass, which is in no page.
    """
    slots, positions, position = _path_of_row(batch, row)
    keys = k[slots].double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("hd,khd->hk", q[row].double(), keys) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    visible = visible_keys(np.array([position]), positions, options.window)[0]
    scores = scores.masked_fill(~visible, -torch.inf)
    total = torch.logsumexp(scores, dim=1)
    if options.sinks is not None:
        total = torch.logaddexp(total, options.sinks.double())
    shares = torch.zeros(q.shape[1], position // BLOCK + 1, dtype=torch.float64)
    pages = torch.from_numpy(positions // BLOCK)[visible]
    return shares.index_add_(1, pages, (scores - total[:, None]).exp()[:, visible])


def attend_pages_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: TreeBatch,
    chosen: Sequence[NDArray[np.bool_]],
    options: AttentionOptions,
) -> Tensor:
    """Attention of every row over chosen pages of its path, in float64.

    Arguments as `attend_reference`; `chosen` has for each row [num_kv_heads, pages up to its own].
    """
    group, out = q.shape[1] // k.shape[1], torch.empty(q.shape, dtype=torch.float64)
    for row, pages in enumerate(chosen):
        slots, positions, position = _path_of_row(batch, row)
        seen = visible_keys(np.array([position]), positions, options.window)
        for head in range(k.shape[1]):
            here = np.append(pages[head], False)[np.minimum(positions // BLOCK, len(pages[head]))]
            visible = seen & torch.from_numpy(here)
            heads = slice(head * group, (head + 1) * group)
            keys, values = (plane[slots, head : head + 1] for plane in (k, v))
            o, lse = partial_reference(q[row : row + 1, heads], keys, values, visible, options)
            if options.sinks is not None:
                o = o * torch.sigmoid(lse - options.sinks[heads].double())[..., None]
            out[row, heads] = o[0]
    return out


def _path_of_row(batch: TreeBatch, row: int) -> tuple[Tensor, np.ndarray, int]:
    """Slots and positions of a row's branch, and the row's own position."""
    ends = np.cumsum(batch.branch_num_queries)
    branch = int(np.searchsorted(ends, row, side="right"))
    first = int(ends[branch]) - int(batch.branch_num_queries[branch])
    slots, positions = path_of(batch, int(batch.branch_segment[branch]))
    return slots, positions, int(batch.branch_query_start[branch]) + row - first
