"""Variants: what computes a token besides the model's own weights, and where on a path it begins.

A token's keys and values depend on the variant that computed it and on everything before it. So an
element of a key of the radix tree is a token id with the number of its variant: paths part where
their variants begin to differ, and share everything before. 0 is the plain model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.cache.node import VARIANT_SHIFT, Keys

PLAIN = 0
_Use = tuple[float, tuple[int, ...] | None]  # scale and layers of an adapter


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """An adapter as a branch uses it. Adapters are compared by identity: one that is loaded again
    under the same name is another.

    Attributes:
        scale: factor on what the adapter adds, above its own scaling.
        layers: indices of the layers in which it acts, ascending; None for all.
    """

    adapter: LoraAdapter
    scale: float = 1.0
    layers: tuple[int, ...] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it adds nothing anywhere."""
        return self.scale == 0.0 or self.layers == ()

    @property
    def digest(self) -> str:
        """Of all that it computes with: the adapter's content, the scale and the layers."""
        about = f"{self.adapter.fingerprint} {self.scale!r} {self.layers}"
        return hashlib.blake2b(about.encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        scale = "" if self.scale == 1.0 else f" at {self.scale:g}"
        return f"adapter {self.adapter.name!r}{scale}"


class VariantTable:
    """Numbers of the variants in use, never given twice.

    It holds no adapter: branches hold those that they use, so the memory of one that was unloaded
    is freed with the last of them.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[LoraAdapter, dict[_Use, int]] = WeakKeyDictionary()
        self._entries: list[_Entry] = []
        self._first_of: dict[str, int] = {}  # the first number of a digest

    def __len__(self) -> int:
        return len(self._entries) + 1

    def number(self, variant: ModelVariant | None) -> int:
        """The number of a variant; PLAIN for None, and for one that adds nothing."""
        if variant is None or variant.is_plain:
            return PLAIN
        uses = self._numbers.setdefault(variant.adapter, {})
        use = (variant.scale, variant.layers)
        if use not in uses:
            digest = variant.digest
            self._entries.append(_Entry(ref(variant.adapter), use, digest, str(variant)))
            uses[use] = len(self._entries)
            self._first_of.setdefault(digest, len(self._entries))
        return uses[use]

    def __getitem__(self, number: int) -> ModelVariant:
        """The variant of a number above PLAIN, which a branch must hold."""
        entry = self._entries[number - 1]
        adapter = entry.adapter()
        if adapter is None:
            raise KeyError(f"{entry.label} was unloaded, and no branch uses it any more")
        return ModelVariant(adapter, *entry.use)

    def label(self, number: int) -> str:
        """How messages name a variant, loaded or not."""
        return self._entries[number - 1].label

    def digest(self, number: int) -> str:
        """What a variant computes with, the same in every process."""
        return self._entries[number - 1].digest

    def first_of(self, digest: str) -> int | None:
        """The first number of a digest; several have it once an adapter was loaded again."""
        return self._first_of.get(digest)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the table keeps of a variant."""

    adapter: ref[LoraAdapter]
    use: _Use
    digest: str
    label: str


@dataclass(frozen=True, slots=True)
class VariantSpans:
    """Variants along a path: `variants[i]` from position `starts[i]` on, PLAIN before the first."""

    starts: tuple[int, ...] = ()
    variants: tuple[int, ...] = ()

    def at(self, position: int) -> int:
        """The variant of a position."""
        found = PLAIN
        for start, variant in zip(self.starts, self.variants, strict=True):
            if start > position:
                break
            found = variant
        return found

    def since(self, start: int, variant: int) -> VariantSpans:
        """The same path up to `start`, one variant from there on."""
        kept = self.until(start)
        last = kept.variants[-1] if kept.variants else PLAIN
        if last == variant:
            return kept
        return VariantSpans((*kept.starts, start), (*kept.variants, variant))

    def until(self, end: int) -> VariantSpans:
        """The path of the first `end` positions; its last variant goes on behind them."""
        count = sum(start < end for start in self.starts)
        return VariantSpans(self.starts[:count], self.variants[:count])

    def without(self, variant: int) -> VariantSpans:
        """The same path with one variant replaced by PLAIN."""
        found = VariantSpans()
        for start, each in zip(self.starts, self.variants, strict=True):
            found = found.since(start, PLAIN if each == variant else each)
        return found

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(first position, position behind the last, variant) of the stretches in a range."""
        at = start
        for begin, variant in zip((*self.starts, stop), (PLAIN, *self.variants), strict=True):
            end = min(begin, stop)
            if end > at:
                yield at, end, variant
                at = end

    def keys(self, tokens: NDArray[np.int32], start: int = 0) -> Keys:
        """Key elements of tokens at positions from `start` on, int64 [n]."""
        keys = tokens.astype(np.int64)
        if self.starts:
            for first, end, variant in self.pieces(start, start + len(tokens)):
                keys[first - start : end - start] |= variant << VARIANT_SHIFT
        return keys


PLAIN_SPANS = VariantSpans()


def last_occurrence(tokens: NDArray[np.int32], wanted: tuple[int, ...]) -> int | None:
    """Position at which `wanted` begins for the last time; None if it does not occur."""
    if len(wanted) > len(tokens):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(wanted))
    found = np.flatnonzero((windows == np.array(wanted, np.int32)).all(axis=1))
    return int(found[-1]) if len(found) else None
