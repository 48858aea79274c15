"""A LoRA adapter as read from a file: two thin matrices for each projection that it changes.

Hu et al. 2021 (LoRA); Kalajdzievski 2023 (rank-stabilised scaling); Greenewald et al. 2025
(activated LoRA).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

PROJECTIONS = ("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down")
LayerPart = tuple[int, str]  # a layer and one of PROJECTIONS


@dataclass(frozen=True, slots=True)
class LowRank:
    """The product b a, added to a weight [out, in]. a: [rank, in], b: [out, rank], float32."""

    a: torch.Tensor
    b: torch.Tensor

    @property
    def rank(self) -> int:
        """Rows of a, columns of b."""
        return int(self.a.shape[0])


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """One adapter under transformers' names and order of rows, its scaling folded into b.

    Attributes:
        name: under which it was loaded.
        origin: its folder, for messages.
        changes: what it adds to each projection of each layer that it changes.
        invocation: token ids from whose last occurrence on it is active (activated LoRA); empty
            for one that is active from where it is begun.
        fingerprint: of all that it computes with, the same for the same files.
    """

    name: str
    origin: str
    changes: Mapping[LayerPart, LowRank]
    invocation: tuple[int, ...] = ()
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fingerprint", _fingerprint(self))

    @property
    def num_bytes(self) -> int:
        """Bytes of its matrices."""
        return sum(each.a.nbytes + each.b.nbytes for each in self.changes.values())


def _fingerprint(adapter: LoraAdapter) -> str:
    digest = hashlib.blake2b(repr(adapter.invocation).encode(), digest_size=12)
    for place, change in sorted(adapter.changes.items(), key=lambda item: item[0]):
        digest.update(f"{place} {tuple(change.a.shape)} {tuple(change.b.shape)}".encode())
        digest.update(change.a.numpy().tobytes() + change.b.numpy().tobytes())
    return digest.hexdigest()
