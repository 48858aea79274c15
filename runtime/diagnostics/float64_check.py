"""The numeric probe: a cached path against its unshared run in float64, node by node.

The cached keys and values of a text are compared with those computed for that text alone: nothing
shared, float64, reference attention. The comparison shows damaged nodes, with the layer and the
token, and the difference of the next-token distributions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from radixlang.kernels.plan.tree_batch import chain
from radixlang.runtime.cache.kv_cache import KVCache
from radixlang.runtime.cache.node import as_edge, walk
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree, Tokens
from radixlang.runtime.models.float64 import in_float64
from radixlang.runtime.models.model import CausalModel, plan_for

CHUNK = 256  # queries of reference attention in memory at once
COLD_TOLERANCE = 1.0  # of 8-bit nodes, whose rounding alone exceeds the tolerance of exact ones


@dataclass(frozen=True, slots=True)
class NodeError:
    """The largest error of one node.

    `error` is the difference of the token at `position` from float64, in units of the root mean
    square of that layer's keys ("k") or values ("v") over the whole text.
    """

    start: int
    end: int
    quantized: bool
    layer: int
    tensor: str
    position: int
    error: float

    def __str__(self) -> str:
        kind = "8-bit tokens" if self.quantized else "tokens"
        place = f"{self.tensor} of token {self.position} in layer {self.layer}"
        return f"{kind} {self.start} to {self.end}: off by {self.error:.1e} in {place}"


@dataclass(frozen=True, slots=True)
class Float64Comparison:
    """The cached path of a text, compared with its float64 run.

    `kl` is the divergence, in nats, of the cache's next-token distribution from the exact one;
    `same_top1` tells whether both have the same likeliest token.
    """

    num_tokens: int
    nodes: tuple[NodeError, ...]
    kl: float
    same_top1: bool
    tolerance: float

    @property
    def diverged(self) -> tuple[NodeError, ...]:
        """Nodes with an error above the tolerance (or NaN), in the order of their tokens."""
        return tuple(
            node
            for node in self.nodes
            if not node.error <= (COLD_TOLERANCE if node.quantized else self.tolerance)
        )

    def __str__(self) -> str:
        top = "the same" if self.same_top1 else "another"
        head = f"{self.num_tokens} tokens: KL {self.kl:.1e}, {top} likeliest token"
        bad = self.diverged
        lines = [f"  {'!' if node in bad else ' '} {node}" for node in self.nodes]
        return "\n".join([head, *lines])


@dataclass(frozen=True, slots=True)
class CachedPath:
    """A copy of the cached path of the beginning of a text.

    `nodes` are (start, end, in 8 bits); `kv` is [num_layers, 2, n, num_kv_heads, head_dim] in
    float64; `logits` [vocab_size] are the model's at the last token, computed from it.
    """

    nodes: tuple[tuple[int, int, bool], ...]
    kv: Tensor
    logits: Tensor


def read_path(
    tree: RadixTree, cache: KVCache, model: CausalModel, namespace: Namespace, tokens: Tokens
) -> CachedPath:
    """Copy a cached path, and run the model on it; call it on the tree's own thread."""
    found = walk(tree.root(namespace), as_edge(tokens))
    parts: list[tuple[RadixNode, int]] = [(node, node.length) for node in tree.path(found.node)]
    if found.child is not None and found.part:
        parts.append((found.child, found.part))
    pieces = [
        (cache.read_cold if node.quantized else cache.read)(node.slots[:length]).cpu().double()
        for node, length in parts
    ]
    shape = (len(cache), 2, 0, cache.num_kv_heads, cache.head_dim)
    kv = torch.cat([torch.empty(shape, dtype=torch.float64), *pieces], dim=2)
    nodes = tuple((node.start, node.start + length, node.quantized) for node, length in parts)
    return CachedPath(nodes, kv, _logits_after(model, cache, kv, tokens))


def compare(
    path: CachedPath, model: CausalModel, tokens: Tokens, tolerance: float
) -> Float64Comparison:
    """Run the text alone in float64 and compare the cached path with it."""
    exact, logits = run_alone(in_float64(model), tokens)
    size = exact.square().mean(dim=(2, 3, 4), keepdim=True).sqrt()  # [num_layers, 2, 1, 1, 1]
    error = (path.kv - exact[:, :, : path.kv.shape[2]]) / size
    worst = error.abs().amax(dim=(3, 4))  # [num_layers, 2, n]; keeps NaN
    wanted, got = (each.double().log_softmax(-1) for each in (logits, path.logits.cpu()))
    return Float64Comparison(
        num_tokens=len(tokens),
        nodes=tuple(_node_error(worst, *node) for node in path.nodes),
        kl=float((wanted.exp() * (wanted - got)).sum()),
        same_top1=bool(wanted.argmax() == got.argmax()),
        tolerance=tolerance,
    )


def _node_error(worst: Tensor, start: int, end: int, quantized: bool) -> NodeError:
    part = worst[:, :, start:end]
    at = int(torch.nan_to_num(part, nan=torch.inf).argmax())
    layer, tensor, token = np.unravel_index(at, part.shape)
    return NodeError(
        start, end, quantized, int(layer), "kv"[int(tensor)], start + int(token),
        float(part.flatten()[at]),
    )  # fmt: skip


def run_alone(model: CausalModel, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Keys and values [num_layers, 2, n, num_kv_heads, head_dim] of a text that shares nothing,
    and the logits [vocab_size] at its last token; reference attention, the model's own dtype."""
    config, num_tokens = model.config, len(tokens)
    cache = KVCache(
        num_tokens, config.num_layers, config.num_kv_heads, config.head_dim,
        dtype=getattr(torch, config.dtype), device=model.device,
    )  # fmt: skip
    hidden = torch.empty(0)
    for start in range(0, num_tokens, CHUNK):
        stop = min(start + CHUNK, num_tokens)
        hidden = _forward(model, cache, tokens, (0, stop), start, backend="reference")
    kv = cache.read(np.arange(num_tokens, dtype=np.int32))
    return kv, model.logits(hidden[-1:])[0]


def _logits_after(model: CausalModel, cache: KVCache, kv: Tensor, tokens: Tokens) -> Tensor:
    """The model's logits at the last token, from keys and values of the path."""
    num_given = min(kv.shape[2], len(tokens) - 1)
    own = KVCache(
        len(tokens), len(cache), cache.num_kv_heads, cache.head_dim,
        dtype=cache.dtype, device=cache.device,
    )  # fmt: skip
    own.write(np.arange(num_given, dtype=np.int32), kv[:, :, :num_given])
    cuts = (0, num_given, len(tokens)) if num_given else (0, len(tokens))
    hidden = _forward(model, own, tokens, cuts, num_given)
    return model.logits(hidden[-1:])[0]


@torch.inference_mode()
def _forward(
    model: CausalModel,
    cache: KVCache,
    tokens: Tokens,
    cuts: tuple[int, ...],
    start: int,
    backend: str | None = None,
) -> Tensor:
    """The model's output for tokens from `start` on; slots are positions, cut into segments."""
    plan = plan_for(model, chain(cuts, start), backend=backend)
    ids = torch.from_numpy(tokens[start : cuts[-1]].astype(np.int64)).to(model.device)
    return model.forward(ids, plan.positions, plan, cache)
