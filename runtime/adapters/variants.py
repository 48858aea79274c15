"""Variants: what computes a token otherwise than the plain model, and where on a path it begins.

A token's keys and values depend on the variant that computed it and on everything before it. So an
element of a key of the radix tree is a token id with the number of its variant: paths part where
their variants begin to differ, and share everything before. 0 is the plain model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from radixlang.attention import EXACT, Attention
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.cache.node import VARIANT_SHIFT, Keys

PLAIN = 0
# scale and layers of an adapter, and how much a token reads
_Use = tuple[float, tuple[int, ...] | None, Attention]


@dataclass(frozen=True, slots=True)
class ModelVariant:
    """An adapter as a branch uses it, and how much of its path a token reads. Adapters are compared
    by identity: one that is loaded again under the same name is another.

    Attributes:
        adapter: None for the model alone.
        scale: factor on what the adapter adds, above its own scaling.
        layers: indices of the layers in which it acts, ascending; None for all.
    """

    adapter: LoraAdapter | None = None
    scale: float = 1.0
    layers: tuple[int, ...] | None = None
    attention: Attention = EXACT

    @property
    def active_adapter(self) -> LoraAdapter | None:
        """The adapter, if it adds anything anywhere."""
        return None if self.scale == 0.0 or self.layers == () else self.adapter

    @property
    def digest(self) -> str:
        """Of all that it computes with: the adapter's content, scale and layers, the attention."""
        content = None if self.adapter is None else self.adapter.fingerprint
        about = f"{content} {self.scale!r} {self.layers} {self.attention}"
        return hashlib.blake2b(about.encode(), digest_size=16).hexdigest()

    def __str__(self) -> str:
        words = []
        if self.adapter is not None:
            scale = "" if self.scale == 1.0 else f" at {self.scale:g}"
            words.append(f"adapter {self.adapter.name!r}{scale}")
        if self.attention != EXACT:
            words.append(str(self.attention))
        return " · ".join(words)


class VariantTable:
    """Numbers of the variants in use, never given twice.

    It holds no adapter: branches hold those that they use, so the memory of one that was unloaded
    is freed with the last of them.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[LoraAdapter, dict[_Use, int]] = WeakKeyDictionary()
        self._alone: dict[_Use, int] = {}  # numbers of the model without an adapter
        self._entries: list[_Entry] = []
        self._first_of: dict[str, int] = {}  # the first number of a digest

    def __len__(self) -> int:
        return len(self._entries) + 1

    def number(self, variant: ModelVariant | None) -> int:
        """The number of a variant; PLAIN for None, and for one that changes nothing."""
        if variant is not None and variant.active_adapter is None:
            variant = ModelVariant(attention=variant.attention)
        if variant is None or variant == ModelVariant():
            return PLAIN
        adapter = variant.adapter
        uses = self._alone if adapter is None else self._numbers.setdefault(adapter, {})
        use = (variant.scale, variant.layers, variant.attention)
        if use not in uses:
            digest, held = variant.digest, None if adapter is None else ref(adapter)
            self._entries.append(_Entry(held, use, digest, str(variant)))
            uses[use] = len(self._entries)
            self._first_of.setdefault(digest, len(self._entries))
        return uses[use]

    def __getitem__(self, number: int) -> ModelVariant:
        """The variant of a number; its adapter must be held by a branch."""
        if number == PLAIN:
            return ModelVariant()
        entry = self._entries[number - 1]
        adapter = None if entry.adapter is None else entry.adapter()
        if entry.adapter is not None and adapter is None:
            raise KeyError(f"{entry.label} was unloaded, and no branch uses it any more")
        return ModelVariant(adapter, *entry.use)

    def attention(self, number: int) -> Attention:
        """How much of its path a token of a variant reads."""
        return EXACT if number == PLAIN else self._entries[number - 1].use[2]

    def has_adapter(self, number: int) -> bool:
        """Whether a variant is computed with an adapter."""
        return number != PLAIN and self._entries[number - 1].adapter is not None

    def reading(self, number: int, attention: Attention) -> int:
        """The number of the same variant with another attention."""
        if attention == self.attention(number):
            return number
        return self.number(replace(self[number], attention=attention))

    def without_adapter(self, spans: VariantSpans, number: int) -> VariantSpans:
        """A path with one use of an adapter, whatever tokens read, replaced by the model alone."""
        used = self._entries[number - 1]
        found = VariantSpans()
        for start, each in zip(spans.starts, spans.variants, strict=True):
            own = None if each == PLAIN else self._entries[each - 1]
            if own is not None and own.adapter == used.adapter and own.use[:2] == used.use[:2]:
                each = self.number(ModelVariant(attention=own.use[2]))
            found = found.since(start, each)
        return found

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

    adapter: ref[LoraAdapter] | None
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
