"""Which rows of a step each adapter adds to, from the variants along its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from radixlang.errors import AdapterFormatError
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.adapters.variants import VariantTable
from radixlang.runtime.models.layers.low_rank import AdapterBatch, AdapterGroup, BoundAdapter
from radixlang.runtime.models.model import AdaptableModel, CausalModel
from radixlang.runtime.scheduling.sequence import TokenSequence


class StepAdapters:
    """Adapters bound to the model in use, and their rows in each step."""

    def __init__(self, variants: VariantTable) -> None:
        self._variants = variants
        self._model: CausalModel | None = None
        self._bound: WeakKeyDictionary[LoraAdapter, BoundAdapter] = WeakKeyDictionary()

    def bind(self, model: CausalModel, adapter: LoraAdapter) -> BoundAdapter:
        """The adapter for a model; made once.

        Raises:
            AdapterFormatError: it belongs to another model, or this kind takes none.
        """
        if model is not self._model:
            self._model, self._bound = model, WeakKeyDictionary()
        found = self._bound.get(adapter)
        if found is None:
            if not isinstance(model, AdaptableModel):
                raise AdapterFormatError(
                    f"no adapter can be added to {model.config.name!r} as it is loaded; adapters "
                    "are for the lean decoder's families, with quantization=None"
                )
            found = self._bound[adapter] = model.bind_adapter(adapter)
        return found

    def of(
        self, model: CausalModel, batch: Sequence[tuple[TokenSequence, int]], counts: Sequence[int]
    ) -> AdapterBatch | None:
        """What is added to the rows of a batch; None if all are the plain model's.

        `counts` are the rows of each sequence, from its first token without keys and values on.
        """
        rows: dict[int, list[int]] = {}
        at = 0
        for (sequence, _), count in zip(batch, counts, strict=True):
            if sequence.variants.starts:
                first = sequence.num_computed
                for begin, end, variant in sequence.variants.pieces(first, first + count):
                    if self._variants.has_adapter(variant):
                        rows.setdefault(variant, []).extend(
                            range(at + begin - first, at + end - first)
                        )
            at += count
        if not rows:
            return None
        return AdapterBatch([self._group(model, number, each) for number, each in rows.items()])

    def _group(self, model: CausalModel, number: int, rows: list[int]) -> AdapterGroup:
        variant = self._variants[number]
        assert variant.adapter is not None
        return AdapterGroup(
            self.bind(model, variant.adapter),
            variant.scale,
            None if variant.layers is None else frozenset(variant.layers),
            np.array(rows, np.int32),
        )
