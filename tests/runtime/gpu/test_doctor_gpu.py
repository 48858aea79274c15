"""`radixlang doctor --gpu` where there is no GPU, or one that is not served."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlang.cli.main import FAILED, USAGE, main
from radixlang.runtime.diagnostics.doctor import Finding
from radixlang.runtime.gpu_checks import report as gpu_report
from tests.runtime.gpu.fake_cuda import FakeCuda


def the_gpu_check(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main(["doctor", *argv, "--json"]) == FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    return {check["name"]: check for check in report["checks"]}["gpu"]


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)


def test_without_a_gpu_it_says_so(no_gpu: None, capsys: pytest.CaptureFixture[str]) -> None:
    found = the_gpu_check(capsys, "--gpu")
    assert found["status"] == "missing"
    assert "torch sees no GPU" in found["found"]
    assert "is built for CPUs" in found["remedy"]
    assert main(["doctor", "--gpu", "cuda:3"]) == FAILED
    printed = capsys.readouterr().out
    assert "device 'cuda:3': torch sees no GPU here" in printed
    assert printed.endswith("one thing is missing\n")


def test_a_driver_that_is_missing_is_told_apart(
    no_gpu: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "nvidia-smi" in the_gpu_check(capsys, "--gpu")["remedy"]


def test_a_failed_check_is_an_exit_code_and_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [Finding("gpu", "ok", "A GPU", values={"total_bytes": 8e9}),
            Finding("sampling", "failed", "3 tokens other than the host's", "report this"),
            Finding("graph", "failed", "CUDA error", "report this")]  # fmt: skip
    monkeypatch.setattr(gpu_report, "gpu_findings", lambda name, model: iter(made))
    assert the_gpu_check(capsys, "--gpu")["values"] == {"total_bytes": 8e9}
    assert main(["doctor", "--gpu"]) == FAILED
    printed = capsys.readouterr().out
    assert "3 tokens other than the host's" in printed
    assert printed.endswith("2 checks failed\n")


def test_a_gpu_on_which_nothing_runs_is_described_and_every_check_fails(
    fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(name="A GPU", major=9, minor=0, multi_processor_count=132,
                                 total_memory=80e9, gcnArchName="")  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    found = list(gpu_report.gpu_findings("cuda:1", "./gone.gguf"))
    assert found[0].values["arch"] == "9.0"
    assert found[0].values["torch"] == torch.__version__
    assert {each.status for each in found[1:]} == {"failed"}
    assert len(found) == 9
    assert fake_cuda.current_device() == 0  # as it was


def test_gpu_and_quick_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "cuda", "--quick"]) == USAGE
    assert "not allowed with" in capsys.readouterr().err
