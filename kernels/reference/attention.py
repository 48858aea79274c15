"""Float64 references: what every kernel is compared with. Slow, and simple enough to believe.

`attend_reference` works from the batch alone, path by path, and shares no code with the plan.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.options import AttentionOptions
from radixlang.kernels.plan.tree_batch import TreeBatch

OPTIONS = frozenset({"scale", "window", "soft_cap", "sinks"})  # what is computed here


def attend_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    batch: TreeBatch,
    options: AttentionOptions,
) -> Tensor:
    """Attention of every flat row over its own gathered path, in float64.

    q [num_tokens, num_heads, head_dim]; k, v [num_slots, num_kv_heads, head_dim] with the new
    tokens already written. Returns q's shape.
    """
    options.check_known(OPTIONS, "the reference")
    out, row = [], 0
    for branch, count in enumerate(batch.branch_num_queries.tolist()):
        slots, positions = path_of(batch, int(batch.branch_segment[branch]))
        first = int(batch.branch_query_start[branch])
        visible = visible_keys(np.arange(first, first + count), positions, options.window)
        o, lse = partial_reference(q[row : row + count], k[slots], v[slots], visible, options)
        if options.sinks is not None:
            o = o * torch.sigmoid(lse - options.sinks.double())[..., None]
        out.append(o)
        row += count
    return torch.cat(out)


def path_of(batch: TreeBatch, segment: int) -> tuple[Tensor, np.ndarray]:
    """Slots and positions of every token from the root to the end of a segment (-1: none)."""
    chain = []
    while segment >= 0:
        chain.append(segment)
        segment = int(batch.segment_parent[segment])
    chain.reverse()
    none = np.empty(0, np.int64)
    slots = np.concatenate([none, *(batch.segment_slots[s] for s in chain)]).astype(np.int64)
    starts = [int(batch.segment_start[s]) + np.arange(len(batch.segment_slots[s])) for s in chain]
    return torch.from_numpy(slots), np.concatenate([none, *starts])


def visible_keys(queries: np.ndarray, keys: np.ndarray, window: int | None) -> Tensor:
    """Bool [num_queries, num_keys]: not after the query, and within its window."""
    visible = keys[None, :] <= queries[:, None]
    if window is not None:
        visible &= keys[None, :] > queries[:, None] - window
    return torch.from_numpy(visible)


def slots_seen(batch: TreeBatch, window: int | None) -> list[list[int]]:
    """Slots that every flat row sees, in position order."""
    seen = []
    for branch, count in enumerate(batch.branch_num_queries.tolist()):
        slots, positions = path_of(batch, int(batch.branch_segment[branch]))
        queries = int(batch.branch_query_start[branch]) + np.arange(count)
        seen += [slots[row].tolist() for row in visible_keys(queries, positions, window)]
    return seen


def partial_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor,
    options: AttentionOptions,
) -> tuple[Tensor, Tensor]:
    """Normalised attention and natural log-sum-exp of every row over one stretch of keys.

    q [rows, num_heads, d]; k, v [keys, num_kv_heads, d]; visible [rows, keys], which stands for
    the window. Returns o [rows, num_heads, d] and lse [rows, num_heads], without sinks; a row
    that sees nothing has (0, -inf).
    """
    group = q.shape[1] // k.shape[1]
    keys = k.double().repeat_interleave(group, dim=1)
    values = v.double().repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,khd->hrk", q.double(), keys) * options.scale
    if options.soft_cap is not None:
        scores = options.soft_cap * torch.tanh(scores / options.soft_cap)
    scores = scores.masked_fill(~visible[None], -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.where(
        lse[..., None] == -torch.inf, 0.0, torch.exp(scores - lse.clamp(min=-1e300)[..., None])
    )
    return torch.einsum("hrk,khd->rhd", weights, values), lse.T


def merge_reference(outs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Combine normalised partials along the first axis by their natural log-sum-exps.

    outs [parts, ..., d], lses [parts, ...]. Empty parts are (0, -inf); all empty gives the same.
    """
    lse = torch.logsumexp(lses.double(), dim=0)
    weights = torch.exp(lses.double() - lse)
    weights = torch.where(lse == -torch.inf, 0.0, weights)
    return (weights[..., None] * outs.double()).sum(dim=0), lse
