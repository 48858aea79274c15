"""What the engine asks of the device that it runs on: which one is current, and its free memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Device(Protocol):
    """A device as the engine sees it; `device_of` finds the one of a `torch.device`."""

    is_host: bool
    attention: str | None  # the backend of `plan_attention`; None: what suits the model

    def bind(self) -> None:
        """Make it the calling thread's current device, to which kernels are launched."""
        ...

    def current(self) -> AbstractContextManager[object]:
        """The same inside a context, for a thread that is not the engine's."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that can be allocated, that which torch caches included; None if unknown."""
        ...

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """The most memory that `run()` takes beyond what is allocated before it; 0 if unknown."""
        ...

    def give_back(self) -> None:
        """Return memory that torch caches to the device, so that a larger block may be had."""
        ...

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record what `run()` launches; the result launches it again over the same addresses, and
        returns the same tensor each time.

        Raises:
            RuntimeError: it cannot be recorded.
        """
        ...


class HostDevice:
    """The CPU: every thread runs on it, and its memory is counted elsewhere."""

    is_host = True
    attention: str | None = None

    def bind(self) -> None:
        """Nothing to do."""

    def current(self) -> AbstractContextManager[object]:
        """Nothing to change."""
        return nullcontext()

    def free_bytes(self) -> int | None:
        """Unknown here."""
        return None

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """Unknown: `run` is not called."""
        return 0

    def give_back(self) -> None:
        """Nothing to do."""

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """There is nothing to win: the function itself."""
        return run


class CudaDevice:
    """A GPU by torch's CUDA interface, which ROCm builds of torch have too."""

    is_host = False
    attention: str | None = "triton"

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device("cuda", index)
        self._pool: torch.cuda._POOL_HANDLE | None = None  # memory that all captured graphs share

    def bind(self) -> None:
        """Launches and captures of this thread go to this device from now on."""
        torch.cuda.set_device(self.device)

    def current(self) -> AbstractContextManager[object]:
        """This device for a while."""
        return torch.cuda.device(self.device)

    def free_bytes(self) -> int | None:
        """What the driver has free, and what torch has reserved and nobody holds."""
        free, _ = torch.cuda.mem_get_info(self.device)
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(free) + int(cached)

    def peak_bytes(self, run: Callable[[], object]) -> int:
        """By torch's own count of what is allocated."""
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        torch.cuda.synchronize(self.device)
        return int(torch.cuda.max_memory_allocated(self.device)) - int(before)

    def give_back(self) -> None:
        """Empty torch's cache of blocks."""
        torch.cuda.empty_cache()

    def capture(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """A CUDA graph, warmed up on a side stream as capture requires.

        Graphs of one device share their memory: the output of one is used up before the next is
        replayed. Only this thread's calls are captured: a user's own CUDA work goes on meanwhile.
        """
        here = torch.cuda.current_stream(self.device)
        beside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            for _ in range(2):
                run()
        here.wait_stream(beside)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


KINDS: dict[str, Callable[[torch.device], Device]] = {
    "cpu": lambda device: HostDevice(),
    "cuda": CudaDevice,
}


def device_of(device: torch.device) -> Device:
    """The device of a model; a kind that torch knows and we do not is treated as the host."""
    return KINDS.get(device.type, KINDS["cpu"])(device)
