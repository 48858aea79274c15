"""What a shell and a notebook show of results: short lines, and cells in the notebook's theme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import radixlang
from radixlang import State, function, gen, select, user
from radixlang.errors import RequestError

Make = Callable[..., Any]


@function
def judge(s: State, text: str) -> None:
    s += user(f"Judge <this>: {text}")
    with s.fork(3) as group:
        group += gen("view", max_tokens=5)
    s["mine"] = 7
    s += select("verdict", ["good", "bad"])


def test_a_state_says_how_it_stands_and_what_it_holds(fake: Make) -> None:
    state = judge("x", runtime=fake(lambda p, q: "good, I think"))
    assert repr(state) == "<state of judge, finished: view, mine=7, verdict='good'>"


def test_a_running_state_waits_for_nothing_to_be_shown(fake: Make) -> None:
    seen: list[str] = []

    @function
    def program(s: State) -> None:
        s += gen("x")
        seen.append(repr(s))
        (branch,) = s.fork(1)
        branch += gen("y")
        assert branch["y"].startswith("long ")
        seen.append(repr(branch))

    program(runtime=fake(["a\x1b", "long " * 30]))
    assert seen[0] == "<state of program, running: x>"
    assert seen[1].startswith("<state of program, branch [0], running: x='a\\x1b', y='long long")
    assert len(seen[1]) < 120


def test_a_failed_state_says_of_what(fake: Make) -> None:
    state = judge.run("x", runtime=fake([RequestError("no")]), check=False)
    assert "failed with RequestError" in repr(state)


def test_a_traced_state_is_shown(fake: Make) -> None:
    seen: list[str] = []

    @function
    def program(s: State) -> None:
        seen.append(repr(s))
        s += gen("x")

    program.trace()
    assert seen == ["<state of program, traced without a model>"]


def test_explanations_savings_and_graphs_are_one_line(fake: Make) -> None:
    backend = fake(lambda p, q: "good, I think")
    judge("x", runtime=backend)
    explanation, savings = judge.explain(text="x"), radixlang.savings(backend, tree=True)
    graph = judge.trace()
    assert repr(explanation).startswith("<explanation of judge: 3 generations, ")
    assert repr(savings).startswith("<savings: ")
    assert repr(graph) == "<graph of judge: 9 nodes in 4 blocks, open: text>"
    for shown in (explanation, savings, graph):
        assert len(repr(shown)) < 200
        assert "\n" not in repr(shown)


def test_cells_follow_the_notebook_and_escape(fake: Make) -> None:
    backend = fake(lambda p, q: "good, I think")
    state = judge("x", runtime=backend)
    explanation = judge.explain(text="x")
    cells = [state, explanation, radixlang.savings(backend, tree=True), judge.trace()]
    for shown in cells:
        html = shown._repr_html_()
        assert html.startswith('<div class="rl cell"><style>')
        assert "light-dark(" in html
        assert html.count("<div") == html.count("</div>")
        assert "<this>" not in html
    assert explanation._repr_html_().count("<tr>") == 1 + len(explanation.edges)


def test_a_long_explanation_folds_its_edges(fake: Make) -> None:
    @function
    def wide(s: State) -> None:
        for branch in s.fork(50):
            branch += "text" + gen("x", max_tokens=1)

    html = wide.explain()._repr_html_()
    assert "<summary>70 more</summary>" in html
