"""Devices that are served, and what is said of the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.runtime.diagnostics import doctor
from radixlang.runtime.process import served_devices
from radixlang.runtime.process.served_devices import device_named, refusal


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with one GPU, whose properties a test may change."""
    found = SimpleNamespace(name="A GPU", major=9, minor=0, gcnArchName="", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: found)
    monkeypatch.setattr(served_devices.importlib.util, "find_spec", lambda name: object())
    return found


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)])
def test_nvidia_from_ampere_on(gpu: Any, capability: tuple[int, int]) -> None:
    gpu.major, gpu.minor = capability
    assert refusal(torch.device("cuda:0")) is None
    assert device_named("auto").type == "cuda"


@pytest.mark.parametrize(("name", "capability"), [("T4", (7, 5)), ("V100", (7, 0))])
def test_an_older_gpu_is_refused_and_auto_takes_the_cpu(
    gpu: Any, name: str, capability: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    gpu.name, (gpu.major, gpu.minor) = name, capability
    with pytest.raises(ParameterError, match=rf"{name} has compute .*need 8.0.*device='cpu'"):
        device_named("cuda")
    assert device_named("auto") == torch.device("cpu")
    assert f"{name} has compute capability" in caplog.text


@pytest.mark.parametrize(
    ("arch", "is_served"),
    [("gfx942:sramecc+:xnack-", True), ("gfx1100", False), ("gfx90a", False)],
)
def test_of_amd_s_cdna3(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, arch: str, is_served: bool
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    gpu.gcnArchName = arch
    why = refusal(torch.device("cuda"))
    assert (why is None) == is_served
    assert is_served or f"is a {arch}" in str(why)


def test_without_triton(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_devices.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ParameterError, match="need Triton, which is there on Linux only"):
        device_named("cuda:0")


def test_a_gpu_that_is_not_there(gpu: Any) -> None:
    with pytest.raises(ParameterError, match="there are 1 GPUs here"):
        device_named("cuda:1")


@pytest.mark.parametrize("name", ["mps", "xpu", "meta"])
def test_other_kinds(name: str) -> None:
    with pytest.raises(ParameterError, match=f"not on {name}"):
        device_named(name)


def test_doctor_says_why_a_gpu_is_not_used(gpu: Any) -> None:
    gpu.major, gpu.minor = 7, 5
    (finding,) = doctor.devices()
    assert finding.status == "note"
    assert "need 8.0" in finding.remedy
