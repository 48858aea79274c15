"""A new sampling parameter is lost nowhere: in a thought, over HTTP, in the GPU's sampler."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import radixlang
from radixlang import Exact, State, TopMass, gen
from radixlang.errors import ParameterError
from radixlang.graph.nodes import Gen
from radixlang.remote.abilities import KINDS
from radixlang.remote.fields import sampling_fields
from radixlang.runtime.engine import step_sampling
from radixlang.runtime.sampling import device_sampler
from radixlang.runtime.sampling.device_sampler import StepTokens
from radixlang.runtime.sampling.row import SamplingRow
from radixlang.runtime.sampling.sampler import Sampled
from radixlang.sampling_params import PARAM_NAMES, SamplingParams
from radixlang.serving.config import ServerConfig
from radixlang.serving.openai_api.asked import sampling_of
from radixlang.serving.openai_api.schemas import ChatRequest
from radixlang.testing import FakeBackend

# one value of each parameter that is not its default
OTHERS: dict[str, Any] = {
    "max_tokens": 9, "min_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
    "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.5, "stop": ("x",),
    "stop_regex": ("x+",), "stop_token_ids": (7,), "ignore_eos": True, "seed": 4,
    "logprobs": True, "top_logprobs": 2, "heal": False, "logit_bias": ((5, 1.0),),
    "logits": lambda context: None, "attention": TopMass(0.01),
}  # fmt: skip
BOUNDS = {"max_tokens", "min_tokens", "stop", "stop_regex", "stop_token_ids", "ignore_eos"}


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
        finite = torch.ones(1, dtype=torch.bool)
        got = sampler.sample(torch.arange(8.0)[None], [0], rows, finite, lambda: None)
        assert len(got.sampled.token_ids) == 1
        assert (len(taken) > before) == (getattr(params, "typical_p", 1.0) == 1.0)


def test_the_lists_name_parameters_that_there_are() -> None:
    names = {each.name for each in fields(SamplingParams)}
    assert names >= device_sampler.HANDLED | device_sampler.ELSEWHERE
    assert not device_sampler.HANDLED & device_sampler.ELSEWHERE
    assert device_sampler.is_known(replace(SamplingParams(), stop=("x",), max_tokens=3))


def test_there_is_a_value_of_every_parameter() -> None:
    assert set(OTHERS) == set(PARAM_NAMES)
    assert all(getattr(SamplingParams(), name) != value for name, value in OTHERS.items())


@pytest.mark.parametrize("name", PARAM_NAMES)
def test_a_thought_takes_what_does_not_bound_the_answer(name: str) -> None:
    @radixlang.function
    def ask(s: State) -> None:
        s += gen("a", think=8, **{name: OTHERS[name]})

    nodes = [node for block in ask.trace().blocks for node in block.nodes]
    thought, answer = (node.params for node in nodes if isinstance(node, Gen))
    assert getattr(answer, name) == OTHERS[name]
    assert (getattr(thought, name) == OTHERS[name]) == (name not in BOUNDS)


SENT_OTHERWISE = {"logprobs", "top_logprobs"}  # in the form of the prompt's kind
NOT_SENT = {"logits", "heal", "attention"}


@pytest.mark.parametrize("name", sorted(set(PARAM_NAMES) - SENT_OTHERWISE - NOT_SENT))
def test_remote_sends_every_parameter(name: str) -> None:
    sent = sampling_fields(SamplingParams(**{name: OTHERS[name]}), KINDS["radixlang"])
    body = ChatRequest.model_validate({"messages": [], **sent})
    assert getattr(sampling_of(body, ServerConfig(), FakeBackend()), name) == OTHERS[name]


def test_remote_refuses_a_function_of_logits() -> None:
    with pytest.raises(ParameterError, match="logits= is not possible here"):
        sampling_fields(SamplingParams(logits=OTHERS["logits"]), KINDS["radixlang"])


def test_remote_refuses_attention_that_is_not_exact() -> None:
    with pytest.raises(ParameterError, match=r"attention=TopMass\(epsilon=0.01\) is not possible"):
        sampling_fields(SamplingParams(attention=OTHERS["attention"]), KINDS["radixlang"])
    assert sampling_fields(SamplingParams(attention=Exact()), KINDS["radixlang"])


@pytest.mark.parametrize("name", sorted(set(PARAM_NAMES) - NOT_SENT))
def test_our_server_takes_every_parameter(name: str) -> None:
    value: Any = {"5": 1.0} if name == "logit_bias" else OTHERS[name]
    asked = {name: list(value) if isinstance(value, tuple) else value}
    body = ChatRequest.model_validate({"messages": [], "logprobs": True, **asked})
    assert getattr(sampling_of(body, ServerConfig(), FakeBackend()), name) == OTHERS[name]


@pytest.mark.parametrize("is_on", [True, False])
def test_our_server_heals_when_it_is_asked_to(is_on: bool) -> None:
    body = ChatRequest(messages=[], heal=is_on)
    assert sampling_of(body, ServerConfig(), FakeBackend()).heal is is_on
