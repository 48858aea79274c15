"""DSPy over a runtime: one prefill for n candidates, typed outputs by constraint, its errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from radixlang.dspy_engine import radix_lm
from radixlang.testing import FakeBackend

pytestmark = pytest.mark.filterwarnings("ignore")  # DSPy's own deprecations, on every call


@pytest.fixture(scope="module")
def dspy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """DSPy, with its cache in a folder of the test."""
    folder: Path = tmp_path_factory.mktemp("dspy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DSPY_CACHEDIR", str(folder))
        import dspy

        yield dspy


def request(lm: Any, text: str, **config: Any) -> Any:
    from dspy.lm15 import Config, Message, Request

    return Request(model=lm.model, messages=(Message.user(text),), config=Config(**config))


def test_a_program_with_typed_outputs_always_parses(
    dspy: Any, make_runtime: Callable[..., Any]
) -> None:
    runtime = make_runtime(num_pages=6000)

    class Judge(dspy.Signature):  # type: ignore[name-defined,misc]
        """Judge a town."""

        town: str = dspy.InputField()
        verdict: Literal["big", "small"] = dspy.OutputField()
        nights: int = dspy.OutputField()
        is_open: bool = dspy.OutputField()

    lm = radix_lm(runtime, temperature=1.0, max_tokens=60, cache=False)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Judge, n=4)(town="Paris")
    for each in zip(*(getattr(found.completions, name) for name in Judge.output_fields),
                    strict=True):  # fmt: skip
        assert each[0] in ("big", "small")
        assert isinstance(each[1], int)
        assert isinstance(each[2], bool)
    stats = runtime.stats()
    length = stats.num_prompt_tokens // 4
    assert stats.num_requests == 4
    assert stats.num_prompt_tokens == 4 * length
    assert stats.num_computed_tokens < length + 4 * 2  # the prompt once, not four times


def test_candidates_differ_and_repeat(dspy: Any, make_runtime: Callable[..., Any]) -> None:
    answers = []
    for _ in range(2):
        lm = radix_lm(make_runtime(), temperature=1.5, max_tokens=12, cache=False, seed=3)
        answers.append(lm("Where is Rome?", n=3))
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == 3


def test_a_request_is_answered_as_a_chat(dspy: Any) -> None:
    backend = FakeBackend({"Where is Rome?": "In Italy."})
    lm = radix_lm(backend, cache=False)
    response = lm(request(lm, "Where is Rome?", max_tokens=5, stop=("y",)))
    assert (response.text, response.finish_reason) == ("In It", "length")
    assert response.usage.output_tokens == 5
    assert response.usage.input_tokens == len("user\nWhere is Rome?\nassistant\n") + 3  # markers
    assert backend.prompts == [
        "<|im_start|>user\nWhere is Rome?<|im_end|>\n<|im_start|>assistant\n"
    ]
    events = list(lm.engine.stream(request(lm, "Where is Rome?")))
    assert [events[0].type, events[-1].type] == ["start", "end"]


def test_awaited_calls_run_together(dspy: Any) -> None:
    lm = radix_lm(FakeBackend({"Rome": "Italy", "Oslo": "Norway"}, delay=0.001), cache=False)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(lm.acall(request(lm, town)) for town in ("Rome", "Oslo")))

    assert [each.text for each in asyncio.run(ask())] == ["Italy", "Norway"]


def test_an_assistants_turn_goes_on(dspy: Any) -> None:
    from dspy.lm15 import Message, Request

    backend = FakeBackend({"It is in": " Italy"})
    lm = radix_lm(backend, cache=False)
    messages = (Message.user("Rome?"), Message.assistant("It is in"))
    response = lm(Request(model=lm.model, system="Be kind.", messages=messages))
    assert response.text == " Italy"
    assert backend.prompts[0].startswith("<|im_start|>system\nBe kind.<|im_end|>")
    assert backend.prompts[0].endswith("<|im_start|>assistant\nIt is in")


def test_what_we_do_not_have_is_refused_by_name(dspy: Any) -> None:
    lm = radix_lm(FakeBackend({"Rome": "Italy"}), cache=False)
    with pytest.raises(dspy.LMError, match="logprobs"):
        lm(request(lm, "Rome", logprobs=2))


def test_a_prompt_that_is_too_long_is_dspys_own_error(
    dspy: Any, make_runtime: Callable[..., Any]
) -> None:
    from dspy.utils.exceptions import ContextWindowExceededError

    lm = radix_lm(make_runtime(), cache=False, num_retries=0)
    with pytest.raises(ContextWindowExceededError):
        lm(request(lm, "Rome " * 3000))
