"""Adapters against PEFT's own forward pass: tokens and log-probabilities, alone and in company."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
