"""A sampling parameter that the GPU's sampler does not know goes to the general one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch

from radixlang.runtime.sampling import gpu, sampler
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class WithNew(SamplingParams):
    """The parameters of tomorrow."""

    typical_p: float = 1.0


class OnGpu(torch.Tensor):
    """Logits that say they lie on a GPU."""

    is_cuda = True


def routes(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which sampler a row of logits "on a GPU" comes to."""
    taken: list[str] = []

    def kernel(logits: Any, rows: Any) -> tuple[torch.Tensor, torch.Tensor]:
        taken.append("kernel")
        return torch.zeros(1, dtype=torch.long), torch.ones(1, dtype=torch.bool)

    monkeypatch.setattr(gpu, "choose", kernel)
    logits = torch.arange(8.0).reshape(1, 8).as_subclass(OnGpu)
    sampler._choose(logits, [SamplingRow(params, seed=1, index=0)])
    return taken[0] if taken else "general"


def test_a_new_parameter_is_left_to_the_general_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routes(WithNew(), monkeypatch) == "kernel"
    assert routes(WithNew(typical_p=0.9), monkeypatch) == "general"


def test_top_k_is_left_to_the_general_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert routes(SamplingParams(top_p=0.5, min_p=0.1), monkeypatch) == "kernel"
    assert routes(SamplingParams(top_k=3), monkeypatch) == "general"


def test_the_lists_name_parameters_that_there_are() -> None:
    names = {each.name for each in fields(SamplingParams)}
    assert names >= gpu.HANDLED | gpu.ELSEWHERE
    assert not gpu.HANDLED & gpu.ELSEWHERE
    assert gpu.is_known(replace(SamplingParams(), stop=("x",), max_tokens=3))
