"""Thoughts: exact budgets, the answer alone goes on, read and streamed apart."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixlang
from radixlang import State, assistant, gen, user
from radixlang.errors import ParameterError, ProgramError, UnknownVariableError
from radixlang.sampling_params import SamplingParams
from radixlang.testing import FakeBackend

MakeFake = Callable[..., FakeBackend]


@radixlang.function
def ask(s: State, question: str, think: int = 8, keep: bool = False, tags: Any = None) -> None:
    s += user(question)
    s += assistant(gen("a", think=think, keep_thinking=keep, think_tags=tags, max_tokens=20))
    s += user("And then?") + assistant(gen("b", max_tokens=20))


def thinker(length: int) -> Callable[[str, SamplingParams], str]:
    """A model that thinks for so many letters, and answers with the length of what it saw."""

    def script(prompt: str, params: SamplingParams) -> str:
        if "</think>" in params.stop:
            return "t" * length + "\n</think>\n\nnever read"
        return f"saw {len(prompt)}"

    return script


def test_budgets_are_exact_in_1000_runs(fake: MakeFake) -> None:
    draws = random.Random(6)
    for _ in range(1000):
        length, budget = draws.randrange(0, 30), draws.randrange(0, 30)
        backend = fake(thinker(length))
        state = ask.run("Why?", think=budget, runtime=backend)
        written = min(length, budget)
        assert state.thought("a") == "t" * written
        if budget:
            completion = state.completion("a.thought")
            assert len(completion.token_ids) == written  # a token a byte
            assert completion.finish_reason == ("stop" if length <= budget else "length")
        seen = backend.prompts[-2]
        assert seen.endswith(f"assistant\n<think>\n{'t' * written}\n</think>\n\n")
        assert "think" not in backend.prompts[-1]
        assert state["a"] == f"saw {len(seen)}"
        backend.close()


def test_the_prompt_goes_on_without_the_thought(fake: MakeFake) -> None:
    backend = fake(["wondering", "because", "the end"])
    state = ask.run("Why?", runtime=backend)
    assert (state["a"], state["b"]) == ("because", "the end")
    assert [(m.role, m.content) for m in state.messages()] == [
        ("user", "Why?"), ("assistant", "because"), ("user", "And then?"), ("assistant", "the end"),
    ]  # fmt: skip
    assert state.text() == (
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nbecause<|im_end|>\n"
        "<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\nthe end<|im_end|>\n"
    )
    assert state.values() == {"a.thought": "wonderin", "a": "because", "b": "the end"}


def test_a_thought_may_stay(fake: MakeFake) -> None:
    backend = fake(["hm", "because", "the end"])
    state = ask.run("Why?", keep=True, runtime=backend)
    assert "<think>\nhm\n</think>\n\nbecause<|im_end|>" in state.text()
    assert "<think>\nhm\n</think>\n\nbecause<|im_end|>" in backend.prompts[-1]
    assert state.thought("a") == "hm"


def test_no_budget_writes_the_tags_alone(fake: MakeFake) -> None:
    backend = fake(["because", "the end"])
    state = ask.run("Why?", think=0, runtime=backend)
    assert backend.prompts[0].endswith("<think>\n\n</think>\n\n")
    assert state.thought("a") == ""
    assert state["a"] == "because"


def test_a_template_that_opens_the_thought_is_not_opened_again(fake: MakeFake) -> None:
    backend = fake(["hm", "because"])

    @radixlang.function
    def opened(s: State) -> None:
        s += radixlang.Markup("Q: why? <think>\n") + gen("a", think=8)

    opened.run(runtime=backend)
    assert backend.prompts[-1] == "Q: why? <think>\nhm\n</think>\n\n"


def test_tags_can_be_named(fake: MakeFake) -> None:
    backend = fake(["2 + 2", "4", "done"], think_tags=None)
    state = ask.run("Sum?", tags=("Working: ", "\nResult: "), runtime=backend)
    assert backend.prompts[1].endswith("Working: 2 + 2\nResult: ")
    assert state["a"] == "4"
    with pytest.raises(ProgramError, match="no thinking tags that are known here; name them"):
        ask.run("Sum?", runtime=fake(think_tags=None))


def test_values_are_typed_and_constrained_after_the_thought(fake: MakeFake) -> None:
    @radixlang.function
    def count(s: State) -> Any:
        s += "How many?" + gen("n", int, think=16) + "."
        return s["n"] + 1

    state = count.run(runtime=fake(["1, 2, 3", "3"]))
    assert state.result == 4
    assert state.thought("n") == "1, 2, 3"
    assert state.text() == "How many?3."


def test_several_thoughts_and_the_answer_of_most(fake: MakeFake) -> None:
    script = ["x", "5", "y", "7", "z", "5"]

    @radixlang.function
    def vote(s: State) -> Any:
        s += "Sum:"
        answer = radixlang.majority(s, 3, gen("n", int, think=4), "n")
        s += "!"
        return answer

    def by_prompt(prompt: str, params: SamplingParams) -> str:
        return script.pop(0)

    state = vote.run(runtime=fake(by_prompt))
    assert state["n"] == state.result
    assert state.text() == f"Sum:{state.result}!"

    @radixlang.function
    def samples(s: State) -> Any:
        s += "Sum:" + gen("n", think=4, n=3)
        s.choose("n", lambda values: values.index("2"))
        s += "!"

    def counted(prompt: str, params: SamplingParams) -> str:
        return "hm" if "</think>" in params.stop else str(prompts.append(prompt) or len(prompts))

    prompts: list[str] = []
    state = samples.run(runtime=fake(counted))
    assert state.text() == "Sum:2!"
    assert "<think>\nhm\n</think>" in prompts[0]


def test_thoughts_of_samples_are_a_list(fake: MakeFake) -> None:
    @radixlang.function
    def samples(s: State) -> Any:
        s += "Sum:" + gen("n", think=4, n=2)
        return list(s.thought("n")), list(s["n"])

    state = samples.run(runtime=fake(thinker(2)))
    seen = len("Sum:<think>\ntt\n</think>\n\n")
    assert state.result == (["tt", "tt"], [f"saw {seen}"] * 2)


def test_streams_are_apart(fake: MakeFake) -> None:
    backend = fake(["wondering", "because", "end"], piece=2, delay=0.001)
    stream = ask.stream("Why?", runtime=backend)
    events = list(stream)
    by_name = {name: "".join(event.text for event in events if event.name == name)
               for name in ("a.thought", "a", "b")}  # fmt: skip
    assert by_name == {"a.thought": "wonderin", "a": "because", "b": "end"}
    names = [event.name for event in events]
    assert names.index("a.thought") < names.index("a") < names.index("b")


def test_one_variable_streams_while_the_program_waits(fake: MakeFake) -> None:
    @radixlang.function
    def both(s: State) -> Any:
        s += "Why?" + gen("a", think=20)
        return "".join(s.stream("a.thought")), "".join(s.stream("a"))

    state = both.run(runtime=fake(["wondering", "because"], piece=2))
    assert state.result == ("wondering", "because")


def test_an_event_loop_reads_a_thought(fake: MakeFake) -> None:
    @radixlang.function
    async def thinks(s: State) -> Any:
        s += "Why?" + gen("a", think=20)
        return await s.aget("a"), await s.aget("a.thought")

    assert asyncio.run(thinks.arun(runtime=fake(["hm", "so"]))).result == ("so", "hm")


def test_a_gen_without_a_thought_has_none(fake: MakeFake) -> None:
    state = ask.run("Why?", runtime=fake())
    with pytest.raises(UnknownVariableError, match=r"b\.thought"):
        state.thought("b")


@pytest.mark.parametrize(
    "options",
    [{"think": -1}, {"think": 2.5}, {"think": True}, {"keep_thinking": True},
     {"think_tags": ("a", "b")}, {"think": 4, "think_tags": "ab"},
     {"think": 4, "think_tags": ("<t>",)}, {"think": 4, "think_tags": ("<t>", " ")},
     {"think": 4, "keep_thinking": "yes"}],
)  # fmt: skip
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(ParameterError, match="think"):
        gen("a", **options)


def test_errors_of_thought_and_answer_are_the_programs(fake: MakeFake) -> None:
    for script in ([ValueError("no thought")], ["hm", ValueError("no answer")]):
        backend = fake(script)
        with pytest.raises(ProgramError, match=str(script[-1])):
            ask.run("Why?", runtime=backend)

    @radixlang.function
    def forks(s: State) -> Any:
        group = s.fork(2, on_error="collect")
        group += gen("a", think=4)
        return group.errors

    errors = forks.run(runtime=fake(["hm", ValueError("no answer"), "hm", "fine"])).result
    assert len(errors) == 1


# ---- graphs, files


def test_explain_compile_and_draw(fake: MakeFake) -> None:
    graph = ask.trace(question="Why?")
    shown = graph.show()
    assert "gen a.thought" in shown
    assert "answer a without its thought" in shown
    assert graph.is_static
    explained = ask.explain(question="Why?", lengths={"a.thought": 6, "a": 3})
    assert explained.num_generations == 3
    assert explained.num_generated_tokens == 6 + 3 + 20
    compiled = ask.compile(think=4)
    state = compiled.run(question="Why?", runtime=fake(["hm", "because", "end"]))
    assert (state["a"], state.thought("a"), state["b"]) == ("because", "hm", "end")
    kept = ask.compile(keep=True).run(question="Why?", runtime=fake(["hm", "because", "end"]))
    assert kept["a"] == "because"
    assert ask.lint(question="Why?") == []


def test_views_show_thought_and_answer(fake: MakeFake) -> None:
    state = ask.run("Why?", runtime=fake(["wondering", "because", "the end"]))
    shown = state.show(color=False)
    assert "wonderin" in shown
    assert "thought 0" in shown
    assert "answers" in shown
    assert "wonderin" in state.to_html()


def test_replays_and_checkpoints(fake: MakeFake, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    state = ask.run("Why?", runtime=fake(["hm", "because", "end"]))
    radixlang.save_replay(state, path)
    same = radixlang.verify_replay(ask, path, runtime=fake(["hm", "because", "end"]))
    assert same.difference is None
    other = radixlang.verify_replay(ask, path, runtime=fake(["ah", "because", "end"]))
    assert other.difference is not None
    with radixlang.resume(radixlang.take_checkpoint(state), runtime=fake(["x"])) as s:
        assert s.text() == state.text()


def test_templates_think(fake: MakeFake) -> None:
    program = radixlang.template(
        "Why? {{ gen a, think=8, max_tokens=9 }} So: {{ a }}, as {{ a.thought }}."
    )
    state = program.run(runtime=fake(["hm", "because"]))
    assert state.text() == "Why? because So: because, as hm."
    assert state.thought("a") == "hm"


def test_no_branch_is_left(fake: MakeFake) -> None:
    backend = fake(thinker(4))
    results = ask.run_batch([{"question": f"Why {i}?"} for i in range(30)], runtime=backend)
    assert {result.error for result in results} == {None}
    assert backend.audit() == []
