"""The language on a real model: SmolLM2-135M-Instruct."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest

from radixlang import assistant, function, gen, select, system, user
from radixlang.program.strategies import majority
from radixlang.records.checkpoint import resume, take_checkpoint
from radixlang.state.state import State

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    from radixlang.runtime.runtime import Runtime

    made = Runtime(quantization=None, dtype="float32", num_pages=8192)
    yield made
    violations = made.audit()
    made.close()
    assert violations == []


def test_a_checkpoint_after_a_healed_generation_has_its_tokens(runtime: Any) -> None:
    """Its first token has the end of the text before it, which is not written a second time."""
    saved: list[Any] = []

    @function
    def program(s: State) -> tuple[int, ...]:
        s += "The capital of France is Par" + gen("rest", max_tokens=4, temperature=0)
        saved.append(take_checkpoint(s))
        return s.tokens()

    told = program(runtime=runtime)
    assert told["rest"].startswith("is")
    with resume(saved[0], runtime=runtime) as s:
        assert s.tokens() == told.result
        assert s.text() == told.text()


@function
def survey(s: State, topic: str) -> None:
    s += system("You answer in a few words.") + user(f"What is {topic}?")
    s += assistant(gen("answer", max_tokens=16, temperature=0))
    with s.fork(3) as group:
        group += lambda i: user(f"Give fact number {i + 1}.")
        group += assistant(gen("fact", max_tokens=12, temperature=0))
    s += user("Is it a place?") + assistant(select("place", ["Yes", "No"]))


def test_fork_nodes_are_branchings_of_the_tree(runtime: Any) -> None:
    runtime.flush_cache()
    explained = survey.explain(runtime, topic="France")
    state = survey(topic="France", runtime=runtime)
    comparison = explained.check(state)
    assert comparison.predicted[::2] == comparison.measured[::2]
    assert abs(comparison.predicted[1] - comparison.measured[1]) <= explained.num_generations
    assert len(list(state["fact"])) == 3
    assert state["place"] in ("Yes", "No")
    assert state.graph == survey.trace(topic="France")


def test_messages_render_to_the_prompt(runtime: Any) -> None:
    state = survey(topic="tea", runtime=runtime)
    rendered = runtime.render_chat(state.messages(), add_generation_prompt=False)
    assert rendered == state.text()


def test_typed_values(runtime: Any) -> None:
    @function
    def program(s: State) -> None:
        s += user("How many days are in a week?")
        s += assistant("Answer: " + gen("days", int, max_tokens=8, temperature=0))
        s += user("As JSON, with two colours.")
        s += assistant(gen("colors", list[Literal["red", "green", "blue"]], max_tokens=40,
                           temperature=0, finish="close"))  # fmt: skip

    state = program(runtime=runtime)
    assert isinstance(state["days"], int)
    assert set(state["colors"]) <= {"red", "green", "blue"}


def test_seeds_do_not_depend_on_the_company(runtime: Any) -> None:
    @function
    def program(s: State, q: str) -> None:
        s += user(q) + assistant(gen("a", max_tokens=10))

    alone = program(q="Tell me a word.", seed=3, runtime=runtime)
    rows = [{"q": "Tell me a word."}, *({"q": f"Say {index}."} for index in range(6))]
    crowd = [program.stream(**row, seed=3, runtime=runtime) for row in rows]
    texts = ["".join(stream.variable("a")) for stream in crowd]
    assert texts[0] == alone["a"]


def test_votes_share_the_prompt(runtime: Any) -> None:
    @function
    def program(s: State) -> Any:
        s += user("Is the sky blue? Answer yes or no.")
        return majority(s, 4, assistant(gen("vote", choices=["yes", "no"])), "vote")

    runtime.flush_cache()
    state = program(runtime=runtime)
    assert state.result in ("yes", "no")
    assert state.usage().num_cached_tokens > 2 * state.usage().num_computed_tokens
