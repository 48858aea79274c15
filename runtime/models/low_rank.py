"""Adapters on a model's own weights: in its fused projections, added to the rows that use them.

The product of the base weight is shared by all rows of a step; what an adapter adds is computed
from the same input, in float32, for the rows of that adapter alone. On the CPU a row's sums have
one order, whoever is in the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from radixlang.errors import AdapterFormatError
from radixlang.runtime.adapters.lora import LoraAdapter, LowRank
from radixlang.runtime.models.config import ModelConfig
from radixlang.runtime.models.rotary import interleave_rows

FUSED = {"qkv": ("q", "k", "v"), "o": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
CHUNK_ROWS = 16  # rows whose products are in memory at once

LayerChanges = Mapping[str, LowRank]  # by the names of FUSED


@dataclass(frozen=True, eq=False)
class BoundAdapter:
    """An adapter in the basis and the fused projections of one model, on its device."""

    layers: tuple[LayerChanges, ...]


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """Rows of a step that use one adapter in one way.

    `rows` are indices into the flat batch, int64 [n]; `layers` those in which it acts, None: all.
    """

    adapter: BoundAdapter
    scale: float
    layers: frozenset[int] | None
    rows: Tensor


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
            change = group.adapter.layers[layer].get(part)
            if change is None or (group.layers is not None and layer not in group.layers):
                continue
            added = low_rank_product(x[group.rows].float(), change) * group.scale
            out[group.rows] = (out[group.rows].float() + added).to(out.dtype)
        return out


def low_rank_product(x: Tensor, change: LowRank) -> Tensor:
    """b a x of rows [n, in] in float32: [n, out]."""
    if x.device.type != "cpu":
        return (x @ change.a.t()) @ change.b.t()
    # One order for each sum; that of a matrix product depends on how many rows it has.
    inner = torch.cat([_row_sums(each, change.a) for each in torch.split(x, CHUNK_ROWS)])
    return torch.cat([_row_sums(each, change.b) for each in torch.split(inner, CHUNK_ROWS)])


def _row_sums(x: Tensor, weight: Tensor) -> Tensor:
    return (x[:, None, :] * weight).sum(-1)


def fused_changes(adapter: LoraAdapter, config: ModelConfig) -> tuple[LayerChanges, ...]:
    """What an adapter adds to the fused projections of each layer, heads in the order of ours.

    Raises:
        AdapterFormatError: it has a layer or a shape that the model has not.
    """
    sizes = _sizes(config)
    deepest = max(layer for layer, _ in adapter.changes)
    if deepest >= config.num_layers:
        raise _unlike(adapter, config, f"layer {deepest}", f"{config.num_layers} layers")
    layers: list[LayerChanges] = []
    for index in range(config.num_layers):
        found: dict[str, LowRank] = {}
        for fused, parts in FUSED.items():
            pieces = _pieces(adapter, config, index, (fused, *parts), sizes)
            if pieces:
                found[fused] = _stacked(pieces, [sizes[part][0] for part in parts])
        layers.append(found)
    return tuple(layers)


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


def _pieces(
    adapter: LoraAdapter, config: ModelConfig, layer: int, parts: Sequence[str],
    sizes: Mapping[str, tuple[int, int]],
) -> list[tuple[int, LowRank]]:  # fmt: skip
    """(index of the part in a fused projection, or -1 for all of it, change) of what there is."""
    found = []
    for place, part in enumerate(dict.fromkeys(parts), -1 if len(parts) > 2 else 0):
        change = adapter.changes.get((layer, part))
        if change is None:
            continue
        shape = (int(change.b.shape[0]), int(change.a.shape[1]))
        if shape != sizes[part]:
            raise _unlike(adapter, config, f"{part}_proj {shape}", f"{part}_proj {sizes[part]}")
        found.append((place, LowRank(change.a, _in_pairs(change.b, part, config))))
    return found


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


def _stacked(pieces: Sequence[tuple[int, LowRank]], heights: Sequence[int]) -> LowRank:
    """One change of a fused projection: inputs below each other, outputs block-diagonal."""
    starts = [sum(heights[:place]) for place in range(len(heights))]
    a = torch.cat([change.a for _, change in pieces])
    b = torch.zeros((sum(heights), len(a)))
    column = 0
    for place, change in pieces:
        row = 0 if place < 0 else starts[place]
        b[row : row + len(change.b), column : column + change.rank] = change.b
        column += change.rank
    return LowRank(a, b)


def _unlike(
    adapter: LoraAdapter, config: ModelConfig, theirs: str, ours: str
) -> AdapterFormatError:
    return AdapterFormatError(
        f"{adapter.origin} changes {theirs}, and {config.name!r} has {ours}; it was trained on "
        "another model"
    )
