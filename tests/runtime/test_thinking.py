"""Thoughts on a model: exact budgets, and a conversation of which nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import radixlang
from radixlang import State, assistant, gen, user
from radixlang.runtime.text.chat_template import think_tags_of

MakeRuntime = Callable[..., Any]
TAGS = ("<think>\n", "\n</think>\n\n")


@radixlang.function
def chat(s: State, num_turns: int, think: int) -> list[int]:
    """Read after every turn, so that each is computed before the next is known."""
    lengths = []
    for turn in range(num_turns):
        s += user(f"Question {turn}: what is in the north of the town?")
        s += assistant(gen(f"a{turn}", think=think, think_tags=TAGS, max_tokens=12))
        lengths.append(len(s.tokens()))
    return lengths


@pytest.mark.parametrize("think", [0, 24])
def test_ten_turns_compute_no_token_of_the_conversation_twice(
    make_runtime: MakeRuntime, think: int
) -> None:
    runtime = make_runtime()
    state = chat.run(num_turns=10, think=think, runtime=runtime, seed=3)
    opening = len(runtime.encode(TAGS[0] if think else "".join(TAGS)))
    shared = 0  # tokens of the conversation that the turn before has computed
    for turn in range(10):
        first = state.usage(f"a{turn}.thought" if think else f"a{turn}")
        assert first.num_cached_tokens == shared
        # computed: the answer of the turn before, which was not there without its thought, the
        # question, and the opening of the thought
        assert first.num_computed_tokens == first.num_prompt_tokens - shared
        shared = first.num_prompt_tokens - opening
        if think:
            answer = state.usage(f"a{turn}")
            assert answer.num_cached_tokens >= first.num_prompt_tokens + think - 1
    assert state.result[-1] > shared
    assert runtime.stats().num_recomputed_tokens == 0


def test_budgets_are_exact_on_a_model(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()

    @radixlang.function
    def thinks(s: State, budget: int, close: float) -> None:
        bias = {runtime.encode("<")[0]: close}
        s += "The theatre" + gen("a", think=budget, think_tags=("<", "<"), max_tokens=3,
                                 logit_bias=bias, ignore_eos=True)  # fmt: skip

    rows = [{"budget": n, "close": c} for n in range(1, 33) for c in (-100.0, 0.0, 4.0)]
    results = thinks.run_batch(rows, runtime=runtime, seed=1)
    reasons = set()
    for result in results:
        assert result.error is None
        completion = result.state.completion("a.thought")
        budget = result.row["budget"]
        assert len(completion.token_ids) <= budget
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == budget
        assert "<" not in completion.text
        reasons.add(completion.finish_reason)
    assert {"length", "stop"} <= reasons


def test_the_answer_is_the_same_as_after_the_same_text(make_runtime: MakeRuntime) -> None:
    runtime = make_runtime()

    @radixlang.function
    def thinks(s: State) -> None:
        s += "The theatre" + gen("a", think=9, think_tags=TAGS, max_tokens=6, temperature=0)
        s += " in the" + gen("b", max_tokens=6, temperature=0)

    @radixlang.function
    def given(s: State, thought: str, answer: str) -> None:
        child = s.fork(1)[0]
        child += radixlang.Markup(TAGS[0]) + thought
        child += radixlang.Markup(TAGS[1]) + gen("a", max_tokens=6, temperature=0)

    state = thinks.run(runtime=runtime)
    tokens = runtime.new_branch()
    tokens.extend("The theatre")
    tokens.extend(state.completion("a").token_ids)
    tokens.extend(" in the")
    params = radixlang.SamplingParams(max_tokens=6, temperature=0)
    assert tokens.generate(params).result(60).token_ids == state.completion("b").token_ids
    tokens.release()


@pytest.mark.parametrize(
    ("template", "tags"),
    [
        ("{{ content.split('</think>')[-1] }}", ("<think>\n", "\n</think>\n\n")),
        ("[THINK]{{ x }}[/THINK]", ("[THINK]", "[/THINK]")),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
        (None, None),
    ],
)
def test_tags_are_those_of_the_chat_template(template: Any, tags: Any) -> None:
    assert think_tags_of(template) == tags


def test_a_runtime_knows_its_tags(make_runtime: MakeRuntime) -> None:
    assert make_runtime().think_tags is None
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
    assert make_runtime(chat_template=template).think_tags == TAGS


@pytest.mark.parametrize("think", [None, 6])
def test_an_answer_that_stops_inside_a_token_is_taken_whole(
    make_runtime: MakeRuntime, think: int | None
) -> None:
    """Into the prompt without its thought, and into a run that resumes from a checkpoint."""
    runtime = make_runtime()
    bias = {" theatre": 100.0}

    @radixlang.function
    def stops(s: State) -> Any:
        s += "The north:" + gen("a", think=think, think_tags=TAGS if think else None, heal=False,
                                logit_bias=bias, stop="atre", max_tokens=4)  # fmt: skip
        return s.tokens(), radixlang.take_checkpoint(s)

    state = stops.run(runtime=runtime)
    tokens, saved = state.result
    assert state["a"] == " the"
    assert runtime.decode(tokens) == "The north: the"
    with radixlang.resume(saved, runtime=runtime) as s:
        assert s.tokens() == tokens
        assert s.text() == "The north: the"
