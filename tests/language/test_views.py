"""Lints, and the views of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixlang import assistant, function, gen, select, user
from radixlang.errors import RequestError
from radixlang.execution.branch_run import Cell
from radixlang.program.state import State
from radixlang.protocol import Completion, Delta, Usage
from radixlang.views.run_tree import branches_of

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


def test_terminal_view(fake: Make) -> None:
    state = branchy(runtime=fake(lambda p, q: "bad" if "part" not in p and "answer" in p else
                                 "answer"))  # fmt: skip
    plain = state.show(color=False)
    assert "\x1b" not in plain
    assert plain.splitlines()[0].startswith("branchy: 3 branches, ")
    assert "part 1 answer" in plain
    colored = state.show(color=True)
    assert "\x1b[32manswer\x1b[0m" in colored
    kinds = [[span.kind for span in branch.spans] for branch in branches_of(state._run())]
    assert kinds[0] == ["computed", "sampled", "computed", "forced"]
    assert all(row[-1] == "sampled" for row in kinds[1:])


def test_terminal_view_draws_forks_as_a_tree(fake: Make) -> None:
    @function
    def nested(s: State) -> None:
        s += "top"
        first, second = s.fork(2)
        first += "one"
        for index, branch in enumerate(first.fork(2)):
            branch += f"one {index}\nmore\n"
        second += "two" + gen("x")

    lines = nested(runtime=fake(lambda p, q: "!")).show(color=False).splitlines()
    assert lines[1:] == [
        "│ top",
        "├─ fork 0",
        "│  │ one",
        "│  ├─ fork 0",
        "│  │    one 0",
        "│  │    more",
        "│  └─ fork 1",
        "│       one 1",
        "│       more",
        "└─ fork 1",
        "     two!",
    ]


def test_notebook_view_escapes_and_nests(fake: Make) -> None:
    html = branchy(runtime=fake(lambda p, q: "good"))._repr_html_()
    assert "Question &lt;&amp;&gt;" in html
    assert html.count("<details") == html.count("</details>") == 3


def test_cached_prompt_is_shown_as_cached(fake: Make) -> None:
    backend = fake(lambda p, q: "good")
    branchy(runtime=backend)
    again = branchy(runtime=backend)
    assert branches_of(again._run())[0].spans[0].kind == "cached"


def test_errors_are_shown_in_their_branch(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        with s.fork(2, on_error="collect") as group:
            group += lambda i: f"{i}" + gen("x")

    state = program(runtime=fake(lambda p, q: RequestError("no") if p == "1" else "yes"))
    assert "[RequestError]" in state.show(color=False)


def test_forced_spans(fake: Make) -> None:
    from radixlang.execution.node_handlers import forced_spans
    from radixlang.protocol import Generation

    generation = Generation()
    generation.push(Delta('{"name": ', (1, 2), num_forced=2))
    generation.push(Delta("Ada", (3,)))
    usage = Usage(num_generated_tokens=3, num_forced_tokens=2)
    generation.set_result(Completion('{"name": Ada', (1, 2, 3), "eos", usage=usage))
    assert forced_spans(generation) == (('{"name": ', True), ("Ada", False))
    cell = Cell(0)
    assert cell.text == ""
