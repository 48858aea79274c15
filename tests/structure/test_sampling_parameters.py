"""A sampling parameter that the GPU's sampler does not know goes to the general one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radixlang.runtime.engine import step_sampling
from radixlang.runtime.sampling import device_sampler
from radixlang.runtime.sampling.device_sampler import StepTokens
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.sampling.sampler import Sampled
from radixlang.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class WithNew(SamplingParams):
    """The parameters of tomorrow."""

    typical_p: float = 1.0


def test_a_new_parameter_is_left_to_the_general_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []

    def on_device(*_: Any, **__: Any) -> StepTokens:
        taken.append("device")
        return StepTokens(Sampled([0], [True], [True], [None]), [True])

    monkeypatch.setattr(step_sampling, "sample_step", on_device)
    gpu: Any = SimpleNamespace(is_host=False)
    sampler = step_sampling.StepSampler(gpu, lambda hidden: hidden, 8, 32)
    for params in (WithNew(), WithNew(typical_p=0.9), SamplingParams(top_k=3)):
        rows = [SamplingRow(params, seed=1, index=0)]
        before = len(taken)
        got = sampler.sample(torch.arange(8.0)[None], [0], rows, torch.ones(1, dtype=torch.bool))
        assert len(got.sampled.token_ids) == 1
        assert (len(taken) > before) == (getattr(params, "typical_p", 1.0) == 1.0)


def test_the_lists_name_parameters_that_there_are() -> None:
    names = {each.name for each in fields(SamplingParams)}
    assert names >= device_sampler.HANDLED | device_sampler.ELSEWHERE
    assert not device_sampler.HANDLED & device_sampler.ELSEWHERE
    assert device_sampler.is_known(replace(SamplingParams(), stop=("x",), max_tokens=3))
