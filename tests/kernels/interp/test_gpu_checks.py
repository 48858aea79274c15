"""The checks of `radixlang doctor --gpu`, on kernels that are interpreted and graphs recorded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from radixlang.kernels.gpu import launch
from radixlang.runtime.diagnostics.doctor import Finding
from radixlang.runtime.gpu_checks import kernel_checks, model_checks
from radixlang.runtime.gpu_checks.kernel_checks import PRECISIONS, Heads, Lab, Sizes, host_clock
from radixlang.runtime.gpu_checks.report import findings
from tests.conftest import make_tiny_model
from tests.kernels.interp.graph_recorder import InterpretedGpu

SMALL = Sizes(
    heads=(Heads(4, 2, 16),), shared=70, own=9, branches=3, new_tokens=20, prompt=10,
    vocab_size=300, rows=10, copied_bytes=1 << 16, square=32,
)  # fmt: skip


@pytest.fixture
def lab() -> Iterator[Lab]:
    gpu = InterpretedGpu()
    with gpu.installed():
        yield Lab(torch.device("cpu"), gpu, host_clock, SMALL)


@pytest.fixture
def model(lab: Lab) -> Any:
    """In plain torch, whose operations the recorder sees."""
    return make_tiny_model(native=False)


def short_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model_checks.decode
    monkeypatch.setattr(
        model_checks, "decode",
        lambda lab, loaded: whole(lab, loaded, num_tokens=2, branches=2),
    )  # fmt: skip


def test_every_check_passes_and_its_figures_are_json(
    lab: Lab, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_decode(monkeypatch)
    found = list(findings(lab, lambda: model))
    assert [each.name for each in found] == [
        "attention bf16", "attention fp16", "attention int8", "sampling", "bandwidth",
        "attention bf16 speed", "attention int8 speed", "model", "graph", "decode",
    ]  # fmt: skip
    assert {each.name: each.found for each in found if each.status != "ok"} == {}
    by_name = {each.name: each.values for each in found}
    json.dumps(by_name, allow_nan=False)
    assert set(by_name["attention bf16"]) == {
        "decode 4/2 d16", "scattered 4/2 d16", "extend 4/2 d16"
    }  # fmt: skip
    assert by_name["sampling"]["num_other"] == 0
    assert by_name["graph"]["same_launches"] == 0.0
    assert by_name["decode"]["num_texts"] == 1
    assert by_name["decode"]["tokens_per_s_2_eager"] > 0


def test_errors_are_those_of_the_precision(lab: Lab) -> None:
    worst = {
        precision.name: max(kernel_checks.attention(lab, precision).values.values())
        for precision in PRECISIONS
    }
    assert worst["bf16"] > worst["fp16"] > 1e-5  # 8 and 11 bits of the result
    assert worst["int8"] < 0.02


@pytest.mark.parametrize("break_it", ["off", "nan"])
def test_wrong_attention_fails(lab: Lab, monkeypatch: pytest.MonkeyPatch, break_it: str) -> None:
    whole = launch.attend_triton

    def broken(*args: Any, **kwargs: Any) -> Any:
        out, lse = whole(*args, **kwargs)
        out[-1, 0, 0] = torch.nan if break_it == "nan" else out[-1, 0, 0] + 0.5
        return out, lse

    monkeypatch.setattr(launch, "attend_triton", broken)
    found = kernel_checks.attention(lab, PRECISIONS[0])
    assert found.status == "failed"
    assert "0.02 is allowed" in found.found
    assert "doctor --gpu --json" in found.remedy


def test_other_tokens_than_the_hosts_fail(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kernel_checks.sample_step

    def broken(*args: Any, **kwargs: Any) -> Any:
        got = whole(*args, **kwargs)
        got.sampled.token_ids[0] += 1
        return got

    monkeypatch.setattr(kernel_checks, "sample_step", broken)
    assert kernel_checks.sampling(lab).status == "failed"


def test_a_graph_that_replays_something_else_fails(lab: Lab, model: Any) -> None:
    class Stale(InterpretedGpu):
        def capture(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
            out = run().clone()
            return lambda: out

    stale = Lab(lab.device, Stale(), lab.timer, lab.sizes)
    found = model_checks.replayed_graph(stale, model.model)
    assert found.status == "failed"
    assert float(found.values["same_launches"]) > 0.1


def test_a_graph_that_cannot_be_captured_is_a_finding(lab: Lab, model: Any) -> None:
    assert isinstance(lab.engine, InterpretedGpu)
    lab.engine.failures = [RuntimeError("operation not permitted")]
    found = model_checks.replayed_graph(lab, model.model)
    assert found.status == "failed"
    assert "cuda_graphs=False" in found.remedy


def test_a_check_that_raises_hides_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Finding:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kernel_checks, "sampling", broken)

    def load() -> Any:
        raise FileNotFoundError("no model here")

    found = {each.name: each for each in findings(lab, load)}
    assert found["sampling"].status == found["model"].status == "failed"
    assert "CUDA out of memory" in found["sampling"].found
    assert found["bandwidth"].status == "ok"
    assert "graph" not in found
