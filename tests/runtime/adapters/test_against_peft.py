"""Adapters against PEFT's own forward pass: tokens and log-probabilities, alone and in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from radixlang.errors import ParameterError
from radixlang.protocol import AdapterUse
from radixlang.sampling_params import SamplingParams
from tests.runtime.adapters.conftest import FAMILIES, Reference, our_model

TIMEOUT = 60
COUNT = 6
PARAMS = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True, top_logprobs=8)
PROMPT = [5, 40, 77, 300, 21, 9, 150, 33, 60, 2, 411, 87]


def check(completion: Any, expected: tuple[list[int], torch.Tensor], tolerance: float) -> None:
    """Compare tokens, and the log-probabilities of the likeliest of each."""
    tokens, rows = expected
    assert list(completion.token_ids) == tokens
    for record, row in zip(completion.logprobs, rows, strict=True):
        for token_id, logprob in record.top:
            assert abs(logprob - float(row[token_id])) < tolerance


def ask(branch: Any, use: AdapterUse | None) -> Any:
    branch.use_adapter(use)
    return branch.generate(PARAMS)


@pytest.fixture
def runtime_for(make_runtime: Callable[..., Any], tiny_model: Any) -> Callable[[Reference], Any]:
    def make(reference: Reference, **options: Any) -> Any:
        runtime = make_runtime(our_model(reference.family, tiny_model), **options)
        for name, folder in reference.folders.items():
            runtime.load_adapter(name, folder)
        return runtime

    return make


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_whole_paths_and_branches_equal_pefts_alone_and_in_one_batch(
    family: str, reference_for: Callable[..., Reference], runtime_for: Callable[..., Any]
) -> None:
    reference = reference_for(family)
    runtime = runtime_for(reference)
    uses = [None, AdapterUse("a"), AdapterUse("b"), AdapterUse("a", 0.7),
            AdapterUse("b", layers=(1,))]  # fmt: skip
    root = runtime.new_branch()
    root.extend(PROMPT)
    alone = []
    for use in uses:  # at a branch, cold and warm
        (branch,) = root.fork(1)
        alone.append(ask(branch, use).result(TIMEOUT))
    together = [ask(branch, use) for branch, use in zip(root.fork(len(uses)), uses, strict=True)]
    whole = []
    for use in uses:
        branch = runtime.new_branch()
        branch.use_adapter(use)
        branch.extend(PROMPT)
        whole.append(branch.generate(PARAMS))
    for i, use in enumerate(uses):
        name = use.name if use else None
        gates = {"scale": use.scale, "layers": use.layers} if use else {}
        expected = reference.answer(PROMPT, name, COUNT, begin=len(PROMPT) - 1, **gates)
        check(alone[i], expected, 1e-5)
        check(together[i].result(TIMEOUT), expected, 1e-5)
        expected = reference.answer(PROMPT, name, COUNT, **gates)
        check(whole[i].result(TIMEOUT), expected, 1e-5)


@torch.no_grad()
def test_an_activated_lora_acts_from_its_invocation_on(
    reference_for: Callable[..., Reference], runtime_for: Callable[..., Any]
) -> None:
    reference = reference_for("qwen3", on={"alora_invocation_tokens": PROMPT[8:10]})
    model = reference.model
    model.set_adapter("on")
    ids, rows = list(PROMPT), []
    for _ in range(COUNT):  # the whole text at once, in which PEFT looks for the invocation
        rows.append(model(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1))
        ids.append(int(rows[-1].argmax()))
    expected = ids[len(PROMPT) :], torch.stack(rows)
    runtime = runtime_for(reference)
    root = runtime.new_branch()
    root.extend(PROMPT)
    ask(root.fork(1)[0], None).result(TIMEOUT)
    found = ask(root, AdapterUse("on")).result(TIMEOUT)
    check(found, expected, 1e-5)
    assert found.usage.num_cached_tokens == 8
    whole = runtime.new_branch()
    whole.use_adapter(AdapterUse("on"))
    whole.extend(PROMPT)
    check(whole.generate(PARAMS).result(TIMEOUT), expected, 1e-5)
    without = runtime.new_branch()
    without.extend(PROMPT[:8])
    with pytest.raises(ParameterError, match=r"the prompt has none of \[60, 2\]"):
        ask(without, AdapterUse("on")).result(TIMEOUT)


def test_ranks_and_scalings_of_patterns_are_pefts(
    reference_for: Callable[..., Reference], runtime_for: Callable[..., Any]
) -> None:
    reference = reference_for(
        "gemma3",
        plain={
            "use_rslora": True, "rank_pattern": {"layers.1.self_attn.q_proj": 3, "down_proj": 7},
            "alpha_pattern": {"o_proj": 2}, "layers_to_transform": [1, 2],
        },
    )  # fmt: skip
    branch = runtime_for(reference).new_branch()
    branch.use_adapter(AdapterUse("plain"))
    branch.extend(PROMPT)
    found = branch.generate(PARAMS).result(TIMEOUT)
    check(found, reference.answer(PROMPT, "plain", COUNT), 1e-5)
