"""Lints, and the views of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import RequestError
from radixlang.execution.pieces import Cell
from radixlang.protocol import Completion, Delta, Usage
from radixlang.state.state import State
from radixlang.views.trace import Words
from radixlang.views.trace_builder import trace_of

Make = Callable[..., Any]
LONG = "constant instructions that every call could share. " * 3


def lint_codes(body: Callable[..., Any]) -> list[str]:
    found = function(body).lint()
    assert all(str(item).startswith(__file__) for item in found)
    return [item.code for item in found]


def test_trailing_blank_before_a_gen() -> None:
    def bad(s: State) -> None:
        s += "Answer: " + gen("x", heal=False)

    def healed(s: State) -> None:
        s += "Answer: " + gen("x")

    def good(s: State) -> None:
        s += "Answer:" + gen("x", heal=False)

    assert lint_codes(bad) == ["RL001"]
    assert lint_codes(healed) == []
    assert lint_codes(good) == []


@pytest.mark.parametrize(
    ("options", "doubtful"),
    [
        ({"regex": "[0-9]+", "stop": "\n"}, True),
        ({"regex": "[0-9\n]+", "stop": "\n"}, False),
        ({"regex": ".*", "stop": "x"}, False),
        ({"regex": r"\d+ (days|weeks)", "stop": "days"}, False),
        ({"regex": r"\d+", "stop": "days"}, True),
        ({"choices": ["a", "b"], "stop": "c"}, True),
        ({"choices": ["a", "b."], "stop": "."}, False),
        ({"json_schema": {"type": "object"}, "stop": "x"}, False),
    ],
)
def test_stop_that_the_constraint_never_meets(options: dict[str, Any], doubtful: bool) -> None:
    def program(s: State) -> None:
        s += gen("x", **options)

    assert ("RL002" in lint_codes(program)) is doubtful


def test_unnamed_and_rebound() -> None:
    def program(s: State) -> None:
        s += gen() + select(None, ["a", "b"]) + gen("x") + gen("x")

    assert sorted(lint_codes(program)) == ["RL003", "RL003", "RL006"]


def test_argument_before_the_constant_prefix() -> None:
    def bad(s: State, q: str) -> None:
        s += f"{q}\n{LONG}" + gen("x")

    def good(s: State, q: str) -> None:
        s += f"{LONG}\n{q}" + gen("x")

    assert lint_codes(bad) == ["RL004"]
    assert lint_codes(good) == []


def test_unused_forks() -> None:
    def idle(s: State) -> None:
        group = s.fork(2)
        group += "text"
        s.join(group)

    def unread(s: State) -> None:
        group = s.fork(2)
        group += gen("x")

    def read(s: State) -> None:
        group = s.fork(2)
        group += gen("x")
        s.join(group, "x")

    assert lint_codes(idle) == ["RL005"]
    assert lint_codes(unread) == ["RL005"]
    assert lint_codes(read) == []


@function
def branchy(s: State) -> None:
    s += user("Question <&>") + assistant(gen("a"))
    with s.fork(2) as group:
        group += lambda i: f"part {i} " + gen("x")
    s += select("mood", ["good", "bad"])


def rows_of(state: State) -> list[str]:
    return state.show(color=False).splitlines()[1:]


def test_terminal_view(fake: Make) -> None:
    state = branchy(runtime=fake(lambda p, q: "bad" if "part" not in p and "answer" in p else
                                 "answer"))  # fmt: skip
    plain = state.show(color=False)
    assert "\x1b" not in plain
    assert plain.splitlines()[0].startswith("branchy: 3 branches, ")
    assert rows_of(state)[:-1] == [
        "│ [user] Question <&>",
        "│ [assistant] a = answer",
        "├─ branch 0",
        "│  │ part 0",
        "│  │ x = answer",
        "├─ branch 1",
        "│  │ part 1",
        "│  │ x = answer",
        "├◂ joined as x",
    ]
    assert rows_of(state)[-1].startswith("│ mood = bad  (100.0%")
    assert "\x1b[32manswer\x1b[0m" in state.show(color=True)


def test_terminal_view_draws_forks_where_they_left(fake: Make) -> None:
    @function
    def nested(s: State) -> None:
        s += "top"
        first, second = s.fork(2)
        first += "one"
        for index, branch in enumerate(first.fork(2)):
            branch += f"one {index}\nmore\n"
        second += "two" + gen("x")
        s += "last"

    assert rows_of(nested(runtime=fake(lambda p, q: "!"))) == [
        "│ top",
        "├─ branch 0",
        "│  │ one",
        "│  ├─ branch 0.0",
        "│  │  │ one 0",
        "│  │  │ more",
        "│  ├─ branch 0.1",
        "│  │  │ one 1",
        "│  │  │ more",
        "├─ branch 1",
        "│  │ two",
        "│  │ x = !",
        "│ last",
    ]


def test_nested_programs_are_drawn_where_they_are_called(fake: Make) -> None:
    @function
    def inner(s: State) -> None:
        s += "in " + gen("y")

    @function
    def outer(s: State) -> None:
        s += "before"
        s.call(inner, scope="vanish")
        s.call(inner)
        s += "after"

    assert rows_of(outer(runtime=fake(lambda p, q: "!"))) == [
        "│ before",
        "├─ inner (vanish)",
        "│  │ in",
        "│  │ y = !",
        "├─ inner (inline)",
        "│  │ in",
        "│  │ y = !",
        "│ after",
    ]


def test_choosing_a_sample_tells_how_the_trunk_goes_on(fake: Make) -> None:
    @function
    def sampled(s: State) -> None:
        s += "Q" + gen("x", n=2)
        s.choose("x", 1)
        s += "after"

    rows = rows_of(sampled(runtime=fake(["one", "two"])))
    assert rows[1:5] == ["├─ branch 0", "│  │ x = one", "├─ branch 1", "│  │ x = two"]
    assert rows[5:] == ["├◂ joined as x", "│ goes on as branch 1 (branch 0, branch 1)", "│ after"]


def test_long_texts_are_folded_in_the_middle(fake: Make) -> None:
    @function
    def reads(s: State) -> None:
        s += "first " + "word " * 6000 + "last" + gen("x")

    shown = reads(runtime=fake(["fine"])).show(color=False)
    assert len(shown) < 1500
    assert "│ first word" in shown
    assert "29,110 more characters" in shown
    assert shown.endswith("word last\n│ x = fine")


def test_control_characters_of_texts_are_written_out(fake: Make) -> None:
    @function
    def odd(s: State) -> None:
        s += "a\x1b[31mred\x07\x9b\rover \ud800\t\r\n" + gen("x")

    for color in (False, True):
        shown = odd(runtime=fake(["\x1b]0;title\x07"])).show(color=color)
        assert "a\\x1b[31mred\\x07\\x9b\\x0dover \\ud800" in shown
        assert "\\x1b]0;title\\x07" in shown
    assert "\x1b" not in odd(runtime=fake(["\x1b"])).show(color=False)


def test_notebook_view_escapes_and_nests(fake: Make) -> None:
    html = branchy(runtime=fake(lambda p, q: "good"))._repr_html_()
    assert "Question &lt;&amp;&gt;" in html
    assert html.count("<details") == html.count("</details>") == 2
    assert "<script" not in html


def test_cached_prompt_is_shown_as_cached(fake: Make) -> None:
    backend = fake(lambda p, q: "good")
    first, again = branchy(runtime=backend), branchy(runtime=backend)
    kinds = [
        [span.kind for step in trace_of(state._run()).trunk.steps if isinstance(step, Words)
         for span in step.spans]
        for state in (first, again)
    ]  # fmt: skip
    assert set(kinds[0][:3]) == {"computed"}
    assert set(kinds[1][:3]) == {"cached"}


def test_text_before_a_fork_is_told_by_the_first_branch_that_reads_it(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "a shared beginning, long enough"
        for branch in s.fork(2):
            branch += "!" + gen("x")

    backend = fake(lambda p, q: "good")
    traces = [trace_of(program(runtime=backend)._run()) for _ in range(2)]
    shared = [trace.trunk.steps[0] for trace in traces]
    assert [[span.kind for span in words.spans] for words in shared] == [["computed"], ["cached"]]  # type: ignore[union-attr]


def test_errors_are_shown_where_they_happened_and_others_as_they_ended(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        with s.fork(2, on_error="collect") as group:
            group += lambda i: f"{i}" + gen("x") + "then " + gen("y")
        s += "after"

    state = program(runtime=fake(lambda p, q: RequestError("no") if p[0] == "1" else "yes"))
    assert rows_of(state) == [
        "├─ branch 0",
        "│  │ 0",
        "│  │ x = yes",
        "│  │ then",
        "│  │ y = yes",
        "├─ branch 1 [failed]",
        "│  │ 1",
        "│  │ x =",
        "│  │ RequestError: no",
        "│  │ then",
        "│  │ y =   [stopped]",
        "├◂ joined as x, y",
        "│ after",
    ]


def test_a_failed_run_has_a_tree_with_what_was_not_reached(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "Q" + gen("x")
        s += select("mood", ["good", "bad"])
        s += gen("z")

    state = program.run(runtime=fake(lambda p, q: RequestError("no") if "yes" in p else "yes"),
                        check=False)  # fmt: skip
    assert state.show(color=False).splitlines()[0].endswith(", failed")
    assert rows_of(state) == [
        "│ Q",
        "│ x = yes",
        "│ mood =",
        "│ RequestError: no",
        "│ not reached: gen z",
    ]


def test_a_deep_chain_of_forks_can_be_drawn(fake: Make) -> None:
    @function
    def deep(s: State) -> None:
        for index in range(1500):
            s += f"{index}"
            s = s.copy()
        s += gen("x")

    state = deep(runtime=fake(["end"]))
    assert state.show(color=False).endswith("│ x = end")
    assert state.to_html().count('<details class="lane') == 1500


def test_forced_spans(fake: Make) -> None:
    from radixlang.execution.handlers.node_handlers import forced_spans
    from radixlang.protocol import Generation

    generation = Generation()
    generation.push(Delta('{"name": ', (1, 2), num_forced=2))
    generation.push(Delta("Ada", (3,)))
    usage = Usage(num_generated_tokens=3, num_forced_tokens=2)
    generation.set_result(Completion('{"name": Ada', (1, 2, 3), "eos", usage=usage))
    assert forced_spans(generation) == (('{"name": ', True), ("Ada", False))
    cell = Cell(0)
    assert cell.text == ""
