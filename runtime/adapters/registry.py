"""The adapters of a runtime by name; for any thread."""

from __future__ import annotations

import threading

from radixlang.errors import ParameterError
from radixlang.protocol import AdapterUse
from radixlang.runtime.adapters.lora import LoraAdapter
from radixlang.runtime.adapters.variants import ModelVariant


class Adapters:
    """Loaded adapters. One that is replaced or removed stays with the branches that use it."""

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._by_name: dict[str, LoraAdapter] = {}
        self._lock = threading.Lock()

    def put(self, adapter: LoraAdapter) -> None:
        """Add an adapter, in place of another of the same name."""
        with self._lock:
            self._by_name[adapter.name] = adapter

    def remove(self, name: str) -> None:
        """Forget an adapter. Raises a ParameterError if there is none of that name."""
        with self._lock:
            self._get(name)
            del self._by_name[name]

    def all(self) -> list[LoraAdapter]:
        """Every adapter, in the order of loading."""
        with self._lock:
            return list(self._by_name.values())

    def variant(self, use: AdapterUse | None) -> ModelVariant | None:
        """What an AdapterUse stands for now; None for the model alone.

        Raises:
            ParameterError: no adapter of this name is loaded, or the model has no such layer.
        """
        if use is None:
            return None
        with self._lock:
            adapter = self._get(use.name)
        if use.layers and use.layers[-1] >= self._num_layers:
            raise ParameterError(
                f"adapter {use.name!r} is asked to act in layer {use.layers[-1]}; the model has "
                f"layers 0 to {self._num_layers - 1}"
            )
        return ModelVariant(adapter, use.scale, use.layers)

    def _get(self, name: str) -> LoraAdapter:
        found = self._by_name.get(name)
        if found is None:
            known = ", ".join(map(repr, self._by_name)) or "none"
            raise ParameterError(
                f"no adapter {name!r} is loaded (loaded: {known}); "
                "load it with runtime.load_adapter(name, folder)"
            )
        return found
