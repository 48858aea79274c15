"""A fake GPU under the engine: tensors on the CPU, the device's interface as torch.cuda has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from radixlang.runtime.process import device as devices
from tests.runtime.gpu.fake_cuda import FakeCuda


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Two devices of 64 MiB; models on the CPU count as being on cuda:1."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    monkeypatch.setitem(devices.KINDS, "cpu", lambda device: MeteredDevice(torch.device("cuda:1")))
    return fake


class MeteredDevice(devices.CudaDevice):
    """The real class over the fake, with attention on the CPU."""

    attention = "cpu"


class MeteredModel:
    """A model that holds memory of the fake device while a step runs, and tells where it ran."""

    def __init__(self, model: Any, cuda: FakeCuda, bytes_per_row: int) -> None:
        self._model = model
        self._cuda = cuda
        self.bytes_per_row = bytes_per_row
        self.rows: list[int] = []
        self.ran_on: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, input_ids: torch.Tensor, *args: Any) -> torch.Tensor:
        """The model's own, under the meter."""
        self.rows.append(len(input_ids))
        self.ran_on.add(self._cuda.current_device())
        with self._cuda.hold(self.bytes_per_row * len(input_ids)):
            out: torch.Tensor = self._model.forward(input_ids, *args)
        return out
