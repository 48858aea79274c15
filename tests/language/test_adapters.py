"""Adapters in programs and templates: where they begin and end, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import radixlang as rx
from radixlang.errors import ParameterError, TemplateError
from radixlang.graph.nodes import Adapt, Gen, Select, Text
from radixlang.protocol import AdapterUse


def adapters(graph: Any, block: int = 0) -> list[Any]:
    """The values of a block and the adapter of each."""
    now, found = None, []
    for node in graph.blocks[block].nodes:
        if isinstance(node, Adapt):
            now = node.use
        elif isinstance(node, (Gen, Select, Text)):
            found.append((type(node).__name__, now))
    return found


def test_a_gens_adapter_is_its_own() -> None:
    @rx.function
    def program(s: rx.State) -> None:
        s += "a" + rx.gen("x", adapter="checker", scale=0.5) + "b"
        s += rx.select("y", ["1", "2"], adapter="checker", layers=range(2, 4)) + rx.gen("z")

    half, two = AdapterUse("checker", 0.5), AdapterUse("checker", layers=(2, 3))
    assert adapters(program.trace()) == [
        ("Text", None), ("Gen", half), ("Text", None), ("Select", two), ("Gen", None),
    ]  # fmt: skip


def test_blocks_nest_and_branches_inherit_them() -> None:
    @rx.function
    def program(s: rx.State) -> None:
        with s.adapter("outer"):
            s += "a"
            with s.adapter("inner", scale=2):
                group = s.fork(2)
            for branch in group:
                branch += rx.gen("x")
                branch += rx.gen("y", adapter="own")
                branch += rx.gen("z")
        s += "b"

    graph = program.trace()
    assert adapters(graph) == [("Text", AdapterUse("outer")), ("Text", None)]
    kinds = [node.use.name for node in graph.blocks[1].nodes if isinstance(node, Adapt)]
    assert kinds == ["own", "inner"]


def test_an_adopted_branch_goes_on_with_the_adapter_of_the_block() -> None:
    @rx.function
    def program(s: rx.State) -> None:
        with s.adapter("draft"):
            group = s.fork(1)
        group[0] += "x"
        s.adopt(group, 0)
        s += "y"

    assert adapters(program.trace()) == [("Text", None)]
    assert [type(node).__name__ for node in program.trace().root.nodes] == [
        "Adapt", "Fork", "Adapt", "Adopt", "Adapt", "Text",
    ]  # fmt: skip


def test_an_error_inside_a_block_ends_it(fake: Callable[..., Any]) -> None:
    @rx.function
    def program(s: rx.State) -> None:
        try:
            with s.adapter("checker"):
                raise ValueError("the program's own")
        except ValueError:
            s += "on"

    state = program.run(runtime=fake())
    assert adapters(state.graph) == [("Text", None)]


def test_templates_have_blocks_and_options() -> None:
    template = rx.template(
        "{% args x %}a{% adapter checker, scale=0.5 %}{{ gen y }}{% end %}"
        "{{ gen z, adapter='other' }}{% adapter \"two words\" %}b{% end %}"
    )
    assert adapters(template.trace(x=1)) == [
        ("Text", None), ("Gen", AdapterUse("checker", 0.5)), ("Gen", AdapterUse("other")),
        ("Text", AdapterUse("two words")),
    ]  # fmt: skip


def test_a_wrong_option_of_a_template_is_shown_in_its_place() -> None:
    with pytest.raises(TemplateError, match="scale must be a finite number"):
        rx.template("{% adapter checker, scale='much' %}a{% end %}").trace()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": 0.5}, "scale belongs to an adapter"),
        ({"layers": [1]}, "layers belongs to an adapter"),
        ({"adapter": ""}, "given by its name"),
        ({"adapter": "x", "scale": float("nan")}, "must be a finite number"),
        ({"adapter": "x", "scale": True}, "must be a finite number"),
        ({"adapter": "x", "layers": [-1]}, "indices from 0"),
        ({"adapter": "x", "layers": 3}, "indices from 0"),
        ({"adapter": AdapterUse("x"), "scale": 1.0}, "in the AdapterUse already"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        rx.gen("x", **options)
    with pytest.raises(ParameterError, match=message):
        rx.select("x", ["a"], **options)


def test_the_drawing_names_them() -> None:
    @rx.function
    def program(s: rx.State) -> None:
        s += "a" + rx.gen("x", adapter="checker", scale=0.5, layers=range(2))

    shown = program.trace().show()
    assert "adapter checker at 0.5, 2 layers" in shown
    assert "end of adapter" in shown
    assert '"name": "checker"' in program.trace().to_json()
