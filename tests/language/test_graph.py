"""Graphs: tracing, passes, drawing, JSON, explain and compile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Literal
from xml.etree import ElementTree

import pytest

from radixlang import assistant, function, gen, select, system, user
from radixlang.constraints.specs import Capture, Choices, Regex, Sequence
from radixlang.errors import NeedsValueError, ParameterError, ProgramError
from radixlang.graph.next_use import future_uses
from radixlang.graph.nodes import Arg, Fork, Ref, Text
from radixlang.graph.passes import constant_prefix, hoist_shared_prefix, merge_text
from radixlang.state.state import State

Make = Callable[..., Any]


@function
def survey(s: State, topic: str, n: int = 3) -> None:
    s += system("You answer briefly.") + user(f"Think about {topic}.")
    with s.fork(n) as group:
        group += lambda i: user(f"Point {i} of {topic}:") + assistant(gen("point", max_tokens=12))
    s += user("Sum up: " + "; ".join(f"{branch.ref('point')}" for branch in group))
    s += assistant(gen("summary", max_tokens=20) + " " + select("mood", ["good", "bad"]))


def test_a_static_run_is_its_trace(fake: Make) -> None:
    state = survey(topic="tea", runtime=fake(lambda p, q: "good" if "Sum" in p else "p"))
    assert state.graph.is_static
    assert state.graph == survey.trace(topic="tea")
    assert state.graph != survey.trace(topic="coffee")
    assert state.text().count("p; p; p") == 1


def test_a_stepwise_run_is_its_trace_without_boundaries(fake: Make) -> None:
    def body(s: State) -> None:
        s += "a" + gen("x")
        s += f"again {s['x']}" + gen("y")

    stepwise = function(body)
    state = stepwise(runtime=fake(["1", "2"]))
    assert not state.graph.is_static
    kinds = [type(node).__name__ for node in state.graph.root.nodes]
    assert [kind for kind in kinds if kind != "Dynamic"] == [
        type(node).__name__ for node in stepwise.trace().root.nodes
    ]
    assert state.graph.first_dynamic().location.file == __file__


def test_open_arguments_interpolate_with_their_format() -> None:
    @function
    def program(s: State, price: float, who: str) -> None:
        s += f"{who} pays {price:>8.2f}" + " to " + who + gen("x")

    (text,) = [node for node in merge_text(program.trace()).root.nodes if isinstance(node, Text)]
    assert text.parts == (
        Arg("who"), " pays ", Arg("price", ">8.2f"), " to ", Arg("who"),
    )  # fmt: skip
    assert program.trace(price=2.0).arguments() == ("who",)


def test_text_with_mark_like_characters_stays_text(fake: Make) -> None:
    hostile = "\ue0000123456789abcdef:0\ue001 \ue000:0\ue001"

    @function
    def program(s: State, text: str) -> None:
        s += gen("x")
        s += f"{text}{s.ref('x')}{text}"

    assert program(text=hostile, runtime=fake(["v"])).text() == f"v{hostile}v{hostile}"


def test_a_value_cut_before_it_is_known_is_an_error() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        s += f"{s['x']}"[:-1]

    with pytest.raises(ParameterError, match="cut in the middle"):
        program.trace()


def test_side_effects_do_not_run_past_a_boundary() -> None:
    effects: list[str] = []

    @function
    def program(s: State) -> None:
        s += gen("x")
        if s["x"]:
            effects.append("ran")

    program.trace()
    assert effects == []


def test_errors_of_the_program_are_not_boundaries() -> None:
    @function
    def program(s: State) -> None:
        raise TypeError("my own")

    with pytest.raises(TypeError, match="my own"):
        program.trace()


def test_merge_and_constant_prefix() -> None:
    @function
    def program(s: State, q: str) -> None:
        s += "one "
        s += "two "
        s += f"three {q} four" + gen("x")

    merged = merge_text(program.trace())
    assert merged.root.nodes[0] == Text(("one two three ", Arg("q"), " four"))
    assert constant_prefix(program.trace()) == (Text(("one two three ",)),)
    assert len(constant_prefix(survey.trace(topic="x", n=1))) == 6


def test_hoisting_keeps_texts_values_and_seeds(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "root "
        group = s.fork(3)
        group += lambda i: f"shared beginning {i}: " + gen("x", temperature=1.0)
        s.join(group, "x")

    graph = hoist_shared_prefix(merge_text(program.trace()))
    fork = next(node for node in graph.root.nodes if isinstance(node, Fork))
    assert fork.prefix == ("shared beginning ",)
    assert graph.blocks[1].nodes[0] == Text(("0: ",))
    plain = program(runtime=fake(), seed=5)
    hoisted = program.compile()(runtime=fake(), seed=5)
    assert list(plain["x"]) == list(hoisted["x"])
    prompts = [block.parent.id for block in graph.blocks[1:]]
    assert prompts == [0, 0, 0]


def test_hoisting_a_whole_branch_leaves_it_empty() -> None:
    @function
    def program(s: State) -> None:
        group = s.fork(2)
        group[0] += "same"
        group[1] += "same" + gen("x")

    graph = hoist_shared_prefix(program.trace())
    assert graph.blocks[1].nodes == []
    assert [type(node).__name__ for node in graph.blocks[2].nodes] == ["Gen"]


def test_future_uses_are_exact() -> None:
    graph = merge_text(survey.trace(topic="x", n=3))
    uses = future_uses(graph)
    assert uses[(0, 0)].num_generations == 3 + 2
    fork = next(i for i, node in enumerate(graph.root.nodes) if isinstance(node, Fork))
    assert uses[(0, fork)].num_generations == 2
    assert uses[(0, fork)].next_in == 2  # one of the branches, then the summary
    assert uses[(0, 0)].next_in == 1
    assert uses[(0, len(graph.root.nodes) - 1)].next_in is None


def test_an_adopted_branch_has_the_future_of_its_parent() -> None:
    @function
    def drafts(s: State) -> None:
        s += "Write." + gen("draft", n=2)
        s.choose("draft", 1)
        s += "Better." + gen("final")

    graph = merge_text(drafts.trace())
    uses = future_uses(graph)
    dropped, chosen = (block for block in graph.blocks if block.kind == "fork")
    at = [type(node).__name__ for node in chosen.nodes].index("Gen")
    assert uses[(dropped.id, at)].num_generations == 0
    assert (uses[(chosen.id, at)].num_generations, uses[(chosen.id, at)].next_in) == (1, 1)
    assert uses[(0, 0)].num_generations == 3


def test_drawings(fake: Make) -> None:
    graph = survey.trace()
    text = graph.show()
    assert "fork 3" in text
    assert "gen summary (max_tokens=20)" in text
    root = ElementTree.fromstring(graph.to_svg())
    assert root.tag.endswith("svg")
    assert "Think about {topic}." in "".join(root.itertext())
    assert graph._repr_html_().count("<div") > 10
    data = json.loads(graph.to_json())
    assert data["arguments"] == ["topic"]
    assert data["is_static"] is True
    assert [block["parent"] for block in data["blocks"]] == [None, 0, 0, 0]


def test_svg_escapes_what_it_shows() -> None:
    @function
    def program(s: State) -> None:
        s += "<script>&" + gen("x")

    ElementTree.fromstring(program.trace().to_svg())
    assert "<script>" not in program.trace()._repr_html_()


def test_joined_list_is_a_reference_in_a_traced_text(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += "go"
        group = s.fork(2)
        group += lambda i: f"{i}" + gen("grade")
        s.join(group)
        s += f"all: {s['grade']}, {s['grade'][0]}"

    graph = program.trace()
    assert "generated value" not in str([node for block in graph.blocks for node in block.nodes])
    live = program(runtime=fake(lambda prompt, _: f"grade {prompt[-1]}")).text()
    compiled = program.compile().run(runtime=fake(lambda prompt, _: f"grade {prompt[-1]}"))
    assert live == "goall: ['grade 0', 'grade 1'], grade 0"
    assert compiled.text() == live


# -- explain ------------------------------------------------------------------------------


def test_explain_counts_by_hand() -> None:
    @function
    def program(s: State) -> None:
        s += "a" * 100
        group = s.fork(4)
        group += lambda i: "b" * 10 + gen("x", max_tokens=5)
        s.join(group, "x")

    class OneByte:
        def encode(self, text: str) -> list[int]:
            return list(text.encode())

    found = program.explain(OneByte())
    assert found.num_prompt_tokens == 4 * 110
    assert found.num_unique_tokens == 110  # the four branches say the same
    assert found.num_generated_tokens == 20
    assert found.peak_kv_tokens == 110 + 4 * 4  # nothing follows each branch's last token
    assert found.unshared_kv_tokens == 4 * 115
    assert found.is_exact
    assert found.kv_bytes(1000) == 126_000
    assert [(edge.num_tokens, edge.num_readers) for edge in found.edges[:2]] == [(100, 4), (10, 1)]
    assert "75% of prefill saved" in str(found)


def test_explain_agrees_with_the_measured_run(fake: Make) -> None:
    backend = fake(lambda p, q: "good" if "Sum" in p else f"point {len(p)}")
    found = survey.explain(backend, topic="tea", n=5)
    state = survey(topic="tea", n=5, runtime=backend)
    comparison = found.check(state)
    assert comparison.is_equal, comparison


def test_explain_without_tokenizer_says_so_and_stops_at_boundaries() -> None:
    @function
    def program(s: State, q: str) -> None:
        s += q + gen("x")
        if s["x"]:
            s += "more"

    found = program.explain(q="hello there", lengths={"x": 3})
    assert not found.is_exact
    assert found.boundary is not None
    assert found.num_generated_tokens == 3
    assert "stops at" in str(found)
    with pytest.raises(ParameterError, match="needs the argument 'q'"):
        program.explain()


class OneCharacter:
    """A tokenizer that knows three words; what else there is takes a token a character."""

    def encode(self, text: str) -> list[int]:
        words = ("yes", "London", "-")
        for word in words:
            text = text.replace(word, chr(words.index(word)))
        return list(map(ord, text))


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"choices": ["yes", "no", "maybe"]}, 5),
        ({"regex": "(yes|no|London)"}, 2),
        ({"regex": "[0-9]{4}-[0-9]{2}"}, 7),
        ({"regex": "yes-?|(ab){0,2}"}, 4),
        ({"regex": r"\w{3}"}, 12),  # four bytes a letter
        ({"regex": "é{40}"}, 64),
        ({"regex": "a+"}, 64),
        ({"regex": "(?i)yes"}, 64),
        ({"regex": "(?i:yes)"}, 64),
        ({"regex": r"(a|b)\1"}, 64),
        ({"constraint": Sequence(("yes-", Capture("n", Regex("[0-9]")), Choices(("aa", "b"))))}, 5),
        ({"json_schema": {"enum": ["yes"]}}, 64),
        ({"choices": ["maybe"], "max_tokens": 3}, 3),
    ],
)
def test_explain_counts_the_longest_constrained_text(options: dict[str, Any], most: int) -> None:
    @function
    def program(s: State) -> None:
        s += "q" + gen("x", **{"max_tokens": 64, **options})

    assert program.explain(OneCharacter()).num_generated_tokens == most
    assert program.explain(OneCharacter(), lengths={"x": 1}).num_generated_tokens == 1


def test_explain_counts_the_longest_value_of_a_type(fake: Make) -> None:
    @function
    def program(s: State) -> None:
        s += gen("sure", bool) + gen("size", Literal["S", "medium"]) + gen("n", int)

    assert program.explain(OneCharacter()).num_generated_tokens == 5 + 6 + 20
    assert program.explain().num_generated_tokens == 2 + 2 + 20  # four bytes a token, "false" two
    backend = fake(["true", "S", "7"])
    found = program.explain(backend)
    assert found.check(program(runtime=backend)).is_equal


# -- compile ------------------------------------------------------------------------------


def test_a_compiled_program_runs_none_of_its_python(fake: Make) -> None:
    calls: list[str] = []

    @function
    def program(s: State, q: str, tail: str = "!") -> None:
        calls.append(q if isinstance(q, str) else "traced")
        s += f"Q: {q}{tail} A: " + gen("a") + select("ok", ["yes", "no"])

    compiled = program.compile()
    backend = fake(lambda p, q: "no" if p.endswith("3") else p[-12:].strip() + "3")
    results = compiled.run_batch([{"q": str(n)} for n in range(2000)], runtime=backend)
    assert calls == ["traced"]
    assert all(result.error is None for result in results)
    assert results[7].text == "Q: 7! A: Q: 7! A:3no"
    assert results[7]["ok"] == "no"
    assert threading.active_count() < 80


def test_compiled_equals_plain(fake: Make) -> None:
    compiled = survey.compile(n=2)
    assert compiled.arguments == ("topic",)
    plain = survey(topic="x", n=2, seed=3, runtime=fake(scores={"good": -1, "bad": -2}))
    fast = compiled(topic="x", seed=3, runtime=fake(scores={"good": -1, "bad": -2}))
    assert plain.text() == fast.text()
    assert plain["summary"] == fast["summary"]
    assert list(plain["point"]) == list(fast["point"])


def test_compile_refuses_a_boundary_with_its_place() -> None:
    @function
    def program(s: State) -> None:
        s += gen("x")
        s += "long" if s["x"] == "a" else "short"

    with pytest.raises(NeedsValueError, match=r"test_graph\.py:\d+"):
        program.compile()


def test_compiled_programs_check_their_arguments(fake: Make) -> None:
    compiled = survey.compile(n=1)
    with pytest.raises(ParameterError, match="needs the argument 'topic'"):
        compiled(runtime=fake())
    with pytest.raises(ParameterError, match="no open argument 'n'"):
        compiled(topic="x", n=3, runtime=fake())
    with pytest.raises(ProgramError):
        compiled(topic="x", runtime=fake([]))


def test_refs_across_branches_compile(fake: Make) -> None:
    @function
    def relay(s: State) -> None:
        group = s.fork(3)
        group[0] += "start" + gen("x")
        group[1] += f"after {group[0]['x']}" + gen("x")
        group[2] += f"after {group[1]['x']}" + gen("x")
        s.join(group, "x")

    graph = relay.trace()
    assert graph.is_static
    assert any(isinstance(part, Ref) for _, node in graph.walk() if isinstance(node, Text)
               for part in node.parts)  # fmt: skip
    state = relay.compile()(runtime=fake(lambda p, q: p[-2:]))
    assert list(state["x"]) == ["rt", "rt", "rt"]


def test_the_fake_lists_every_hint_that_was_given(fake: Make) -> None:
    backend = fake()
    branch = backend.new_branch()
    backend.post(lambda: time.sleep(0.05))  # it is slow to come to what is queued
    branch.extend("a")
    branch.expect(2)
    assert backend.expected == [("a", 2)]
    branch.release()


def test_a_compiled_run_tells_its_future_uses(fake: Make) -> None:
    @function
    def program(s: State, topic: str) -> None:
        s += f"On {topic}." + gen("first")
        s.fork(1)[0].append("Then" + gen("second"))
        s += select("mood", ["good", "bad"])

    backend = fake({"Then": "x", "On tea.": "good"})
    program.compile()(topic="tea", runtime=backend)
    assert sorted(backend.expected, key=str) == [
        ("On tea.good", 1),
        ("On tea.good", 1),
        ("On tea.goodThenx", None),
        ("On tea.goodgood", None),
    ]
    backend.expected.clear()
    program(topic="tea", runtime=backend)  # runs as Python does: nobody knows what comes
    assert backend.expected == []
