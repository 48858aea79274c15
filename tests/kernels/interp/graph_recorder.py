"""Stands in for CUDA graphs in Triton's interpreter.

`record` runs a function once and keeps what it did to which tensors: torch's operations and kernel
launches. A replay does the same to the same tensors again and runs none of the function's own code,
so what that code would have read anew is missing, as it is from a real graph. What a capture
forbids, waiting for a value, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten
from triton.runtime.interpreter import GridExecutor

from radixlang.runtime.process import device as devices

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal.default")
UNWRITTEN = ("aten.empty", "aten.new_empty")  # memory that its owner writes


def tensors_in(values: Any) -> list[Tensor]:
    """Every tensor of a nested value."""
    return [each for each in tree_flatten(values)[0] if isinstance(each, Tensor)]


class _Tape(TorchDispatchMode):
    """Writes down operations while it is the current mode, and launches that are given to it."""

    def __init__(self) -> None:
        super().__init__()
        self.replays: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(name in str(func) for name in WAITING):
            raise RuntimeError(f"operation not permitted while a stream is captured: {func}")
        out = func(*args, **kwargs)
        if func._schema.is_mutable:
            self.replays.append(lambda: func(*args, **kwargs))
        elif not str(func).startswith(UNWRITTEN) and not self._is_view(out, (args, kwargs)):
            self.replays.append(lambda: self._write(out, func(*args, **kwargs)))
        return out

    def launch(self, executor: GridExecutor, args: Any, kwargs: Any) -> None:
        """Run a kernel and write it down."""
        with _disable_current_modes():
            _LAUNCH(executor, *args, **kwargs)
        self.replays.append(lambda: _LAUNCH(executor, *args, **kwargs))

    @staticmethod
    def _is_view(out: Any, given: Any) -> bool:
        """Whether an operation has only given a new shape to what was there."""
        held = {each.untyped_storage().data_ptr() for each in tensors_in(given)}
        return all(each.untyped_storage().data_ptr() in held for each in tensors_in(out))

    @staticmethod
    def _write(kept: Any, fresh: Any) -> None:
        for old, new in zip(tensors_in(kept), tensors_in(fresh), strict=True):
            old.copy_(new)


_LAUNCH = GridExecutor.__call__


class InterpretedGpu(devices.HostDevice):
    """A device whose kernels are interpreted and whose graphs are recorded.

    `failures` are raised by the next captures, one each.
    """

    is_host = False
    attention = "triton"

    def __init__(self) -> None:
        self.num_captures = self.num_replays = 0
        self.failures: list[Exception] = []
        self._tape: _Tape | None = None

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Nothing is measured."""
        return 0

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Warm up and record one run."""
        run()
        if self.failures:
            raise self.failures.pop(0)
        self._tape = tape = _Tape()
        try:
            with tape:
                out = run()
        finally:
            self._tape = None
        self.num_captures += 1

        def replay() -> Tensor:
            self.num_replays += 1
            for each in tape.replays:
                each()
            return out

        return replay

    @contextmanager
    def installed(self) -> Iterator[InterpretedGpu]:
        """Models on the CPU count as being on this device."""

        def launch(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
            if self._tape is None:
                _LAUNCH(executor, *args, **kwargs)
            else:
                self._tape.launch(executor, args, kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GridExecutor, "__call__", launch)
            patch.setitem(devices.KINDS, "cpu", lambda device: self)
            yield self
