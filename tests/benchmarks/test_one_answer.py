"""The same prompts give the same bits under every condition: a short form of the benchmark."""

from __future__ import annotations

import functools

import pytest

from benchmarks import one_answer
from benchmarks.one_answer import CONDITIONS, WEIGHTS, Answer, Questions, differing
from radixlang.runtime.models.loader import load_model
from radixlang.runtime.models.model import LoadedModel
from radixlang.runtime.process.native_library import native_library

QUESTIONS = Questions.of(5, 5)


@functools.cache
def model(weights: str) -> LoadedModel:
    return load_model(quantization=WEIGHTS[weights])


@functools.cache
def expected(weights: str) -> list[Answer]:
    return one_answer.alone(model(weights), QUESTIONS)


@pytest.mark.model
@pytest.mark.parametrize("weights", ["int8", "float32"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_nothing_differs(weights: str, condition: str) -> None:
    if native_library() is None:
        pytest.skip("there is no C++ compiler, or RADIXLANG_NATIVE is empty")
    found = CONDITIONS[condition](model(weights), QUESTIONS)
    assert differing(found, expected(weights)) == (0, 0)
    assert len({tuple(each.token_ids) for each in found}) > 5


def test_differences_are_counted_in_texts_and_in_bits() -> None:
    a, b, c = (Answer([1], [-0.5], [-0.25]), Answer([2], [-0.5], [-0.25]), Answer([1], [-0.5], [0]))
    assert differing([a, a, a], [a, b, c]) == (1, 1)


@pytest.mark.model
@pytest.mark.parametrize("quantization", ["int8", None])
def test_plain_torch_gives_one_answer_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    monkeypatch.setenv("RADIXLANG_NATIVE", "")
    plain, few = load_model(quantization=quantization), Questions.of(2, 3)
    with one_answer.Runtime(plain, seed=0, num_pages=4096, deterministic=True) as runtime:
        alone = one_answer.one_by_one(runtime, few)
        assert differing(one_answer.together(runtime, few), alone) == (0, 0)
