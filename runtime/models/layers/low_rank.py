"""Adapters on a model's own weights: in its fused projections, added to the rows that use them.

The product of the base weight is shared by all rows of a step; what an adapter adds is computed
from the same input, in float32, for the rows of that adapter alone. On the CPU a row's sums have
one order, whoever is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlang.errors import AdapterFormatError
from radixlang.kernels.native.low_rank import LowRankPair
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.layers.rotary import interleave_rows

FUSED = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
CHUNK_ROWS = 16  # rows whose products are in memory at once

LayerPairs = Mapping[str, tuple[LowRankPair, ...]]  # by the names of FUSED
Fold = Callable[[int, str, LowRankPair], LowRankPair]  # of a layer's part, into a model's own basis


@dataclass(frozen=True, eq=False)
class BoundAdapter:
    """An adapter in the basis and the fused projections of one model, on its device."""

    layers: tuple[LayerPairs, ...]


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """Rows of a step that use one adapter in one way.

    `rows` are indices into the flat batch, ascending; `layers` those in which it acts, None: all.
    """

    adapter: BoundAdapter
    scale: float
    layers: frozenset[int] | None
    rows: NDArray[np.int32]

    def pairs(self, layer: int, part: str) -> tuple[LowRankPair, ...]:
        """What it adds to one product of a layer."""
        if self.layers is not None and layer not in self.layers:
            return ()
        return self.adapter.layers[layer].get(part, ())


class AdapterBatch:
    """What the adapters of a step add to its products."""

    def __init__(self, groups: Sequence[AdapterGroup]) -> None:
        self.groups = tuple(groups)

    def add(self, layer: int, part: str, x: Tensor, out: Tensor) -> Tensor:
        """Add to a product in place; returns it.

        Args:
            part: a name of FUSED.
            x: input of the product [num_tokens, in], of floats or quantized values.
            out: the product [num_tokens, out].
        """
        for group in self.groups:
            pairs = group.pairs(layer, part)
            if not pairs:
                continue
            rows = torch.from_numpy(group.rows.astype(np.int64)).to(out.device)
            taken, added = x[rows].float(), out[rows].float()
            for pair in pairs:
                columns = slice(pair.column, pair.column + pair.b.shape[1])
                added[:, columns] += low_rank_product(taken, pair) * group.scale
            out[rows] = added.to(out.dtype)
        return out


def low_rank_product(x: Tensor, pair: LowRankPair) -> Tensor:
    """x aᵀ b of rows [n, in] in float32: [n, out]."""
    if x.device.type != "cpu":
        return (x @ pair.a.t()) @ pair.b
    # One order for each sum; that of a matrix product depends on how many rows it has.
    inner = torch.cat([_row_sums(each, pair.a) for each in torch.split(x, CHUNK_ROWS)])
    return torch.cat([_row_sums(each, pair.b.t()) for each in torch.split(inner, CHUNK_ROWS)])


def _row_sums(x: Tensor, weight: Tensor) -> Tensor:
    return (x[:, None, :] * weight).sum(-1)


def bind(adapter: LoraAdapter, config: ModelConfig, fold: Fold) -> BoundAdapter:
    """An adapter on the fused projections of a model, heads in the order of ours.

    Raises:
        AdapterFormatError: it has a layer or a shape that the model has not.
    """
    sizes = _sizes(config)
    deepest = max(layer for layer, _ in adapter.changes)
    if deepest >= config.num_layers:
        raise _unlike(adapter, config, f"layer {deepest}", f"{config.num_layers} layers")
    layers: list[dict[str, list[LowRankPair]]] = [{} for _ in range(config.num_layers)]
    for (layer, part), change in sorted(adapter.changes.items(), key=lambda item: item[0]):
        shape = (int(change.b.shape[0]), int(change.a.shape[1]))
        if shape != sizes[part]:
            raise _unlike(adapter, config, f"{part}_proj {shape}", f"{part}_proj {sizes[part]}")
        fused, column = _place(part, sizes)
        pair = LowRankPair(change.a, _in_pairs(change.b, part, config).t().contiguous(), column)
        layers[layer].setdefault(fused, []).append(fold(layer, fused, pair))
    return BoundAdapter(tuple(
        {part: tuple(pairs) for part, pairs in layer.items()} for layer in layers
    ))  # fmt: skip


def _sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """(out, in) of every projection."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query = config.num_heads * config.head_dim
    key = config.num_kv_heads * config.head_dim
    return {
        "q": (query, hidden), "k": (key, hidden), "v": (key, hidden),
        "qkv": (query + 2 * key, hidden), "o": (hidden, query),
        "gate": (inner, hidden), "up": (inner, hidden), "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }  # fmt: skip


def _place(part: str, sizes: Mapping[str, tuple[int, int]]) -> tuple[str, int]:
    """The fused projection of a part, and the column where the part begins in it."""
    if part in FUSED:
        return part, 0
    fused = next(name for name, parts in FUSED.items() if part in parts)
    before = FUSED[fused][: FUSED[fused].index(part)]
    return fused, sum(sizes[each][0] for each in before)


def _in_pairs(b: Tensor, part: str, config: ModelConfig) -> Tensor:
    """Rows of queries and keys with the two of a rotated pair side by side."""
    rotary_dim = config.ropes[0].rotary_dim
    if part == "qkv":
        counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
        split = torch.split(b, [count * config.head_dim for count in counts])
        return torch.cat(
            [_in_pairs(rows, name, config) for rows, name in zip(split, "qkv", strict=True)]
        )
    if part == "q":
        return interleave_rows(b, config.num_heads, rotary_dim)
    return interleave_rows(b, config.num_kv_heads, rotary_dim) if part == "k" else b


def _unlike(
    adapter: LoraAdapter, config: ModelConfig, theirs: str, ours: str
) -> AdapterFormatError:
    return AdapterFormatError(
        f"{adapter.origin} changes {theirs}, and {config.name!r} has {ours}; it was trained on "
        "another model"
    )
