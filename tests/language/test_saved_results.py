"""Results in files: resumed as they were, never those of something else, one line a row."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

import radixlang
from radixlang import function, gen, template
from radixlang.errors import ParameterError, StateClosedError
from radixlang.records.typed_json import restored, types_of
from radixlang.state.state import State

Make = Callable[..., Any]


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass(frozen=True)
class Order:
    item: str
    due: datetime.date


class Point(NamedTuple):
    x: int
    y: int


VALUES: dict[str, Any] = {
    "text": "a", "number": 1.5, "date": datetime.date(2024, 2, 29), "colour": Colour.BLUE,
    "at": datetime.datetime(2024, 1, 2, 3, 4, 5), "span": datetime.timedelta(days=1, seconds=2),
    "price": Decimal("1.10"), "order": Order("chair", datetime.date(2024, 1, 1)),
    "point": Point(1, 2), "pair": (1, (2, 3)), "some": {1, 2}, "by_number": {1: "one"},
    "id": UUID(int=7), "bytes": b"\x00\xff", "path": Path("a/b"), "nested": [{"d": [Decimal(2)]}],
    "tagged": {"$type": "os:system", "value": "x"}, "none": None,
}  # fmt: skip


def through_json(values: dict[str, Any]) -> dict[str, Any]:
    from radixlang.constraints.typed_values import to_json

    types = json.loads(json.dumps(types_of(values)))
    return restored(json.loads(json.dumps(to_json(values))), types)


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_with_their_types(name: str) -> None:
    found = through_json({name: VALUES[name]})[name]
    assert found == VALUES[name]
    assert type(found) is type(VALUES[name])


def test_a_file_calls_nothing_but_constructors_of_values() -> None:
    for name in ("os:system", "builtins:eval", "subprocess:Popen", "no_such_module:x"):
        assert restored({"x": "plain"}, {"x": {"$type": name, "value": "echo"}}) == {"x": "plain"}


@function
def typed(s: State, q: str) -> None:
    s += q + gen("colour", Colour)
    s["due"] = datetime.date(2024, 1, 2)


def test_a_resumed_row_has_typed_values_and_refuses_its_state(fake: Make, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"q": "sky? "}]
    first = typed.run_batch(rows, runtime=fake(["b"]), save_to=file)[0]
    again = typed.run_batch(rows, runtime=fake([]), save_to=file)[0]
    assert dict(again.values) == dict(first.values)
    assert again["colour"] is Colour.BLUE
    assert first.state.text() == again.text
    with pytest.raises(StateClosedError, match="row 0 has no state: it was read from a file"):
        _ = again.state


@function
def ask(s: State, q: str, hint: str = "") -> None:
    s += q + hint + gen("a")


@function(name="ask")
def ask_otherwise(s: State, q: str, hint: str = "") -> None:
    s += q + hint + "! " + gen("a")


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        (ask_otherwise, {}, "the program was ask"),
        (ask.bind(hint="well"), {}, "the program was ask"),
        (ask, {"temperature": 0.5}, "temperature was None, and is 0.5"),
        (ask, {"seed": 2}, "seed was 1, and is 2"),
        (ask, {"namespace": "other"}, "namespace was None, and is 'other'"),
    ],
)
def test_results_of_another_program_or_option_are_refused(
    fake: Make, tmp_path: Path, program: Any, options: dict[str, Any], said: str
) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"q": "1"}]
    ask.run_batch(rows, runtime=fake(), save_to=file, seed=1)
    before = file.read_bytes()
    with pytest.raises(ParameterError, match=said):
        program.run_batch(rows, runtime=fake(), save_to=file, **{"seed": 1, **options})
    with pytest.raises(ParameterError, match="model was 'fake', and is 'other'"):
        ask.run_batch(rows, runtime=fake(model_name="other"), save_to=file, seed=1)
    assert file.read_bytes() == before


def test_compiled_programs_and_templates_have_their_own_results(fake: Make, tmp_path: Path) -> None:
    rows = [{"q": "1"}]
    texts = ("{% args q %}{{ q }}{{ gen a }}", "{% args q %}{{ q }}?{{ gen a }}")
    for kind, programs in {
        "template": [template(text, name="t") for text in texts],
        "compiled": [ask.compile(), ask_otherwise.compile()],
    }.items():
        file = tmp_path / f"{kind}.jsonl"
        programs[0].run_batch(rows, runtime=fake(), save_to=file)
        programs[0].run_batch(rows, runtime=fake([]), save_to=file)
        with pytest.raises(ParameterError, match="the program was"):
            programs[1].run_batch(rows, runtime=fake(), save_to=file)


@pytest.mark.parametrize(
    "content", ["hello", "hello\n", '{"name": "a user\'s own data"}\n', "[]\n", '{"index": 0}\n',
                '{"index": 0, "row": 1, "values": {}, "text": "", "made_by": {}}\n']
)  # fmt: skip
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    fake: Make, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(content)
    with pytest.raises(ParameterError, match="is no file of results: line 1"):
        ask.run_batch([{"q": "1"}], runtime=fake(), save_to=file)
    assert file.read_text() == content


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\r", "\ud800", "\x0b"])
def test_rows_with_odd_characters_are_saved_once_and_resumed(
    fake: Make, tmp_path: Path, odd: str
) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"q": f"a{odd}b"}, {"q": "plain"}]
    char = {"tokens": "char"}
    first = ask.run_batch(rows, runtime=fake([f"x{odd}y", "z"], **char), save_to=file,
                          max_workers=1)  # fmt: skip
    assert [result.error for result in first] == [None, None]
    assert file.read_bytes().count(b"\n") == 2
    again = ask.run_batch(rows, runtime=fake([], **char), save_to=file)
    assert [result["a"] for result in again] == [result["a"] for result in first]
    assert file.read_bytes().count(b"\n") == 2


def test_a_torn_last_line_is_cut_off_and_done_again(fake: Make, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"q": "1"}, {"q": "2"}]
    ask.run_batch(rows, runtime=fake(["a", "b"]), save_to=file, max_workers=1)
    whole = file.read_bytes()
    for cut in (1, 5, 40):
        file.write_bytes(whole[:-cut])
        again = ask.run_batch(rows, runtime=fake(lambda p, q: "new"), save_to=file)
        assert [result["a"] for result in again] == ["a", "new"]
        assert all(json.loads(line) for line in file.read_text("utf-8").splitlines())


# -- checkpoints and replays ----------------------------------------------------------------


@function
def start(s: State) -> None:
    s += "one: " + gen("one")
    s["due"] = datetime.date(2024, 1, 2)


def test_a_checkpoint_keeps_its_namespace_and_its_types(fake: Make) -> None:
    backend = fake({"one": "1", "two": "2"})
    data = radixlang.take_checkpoint(start(runtime=backend, namespace="tenant-a"))
    backend.flush_cache()
    with radixlang.resume(json.loads(json.dumps(data)), runtime=backend) as s:
        s += ", two: " + gen("two")
        assert s["due"] == datetime.date(2024, 1, 2)
    assert list(backend._tries) == ["tenant-a"]
    with pytest.raises(ParameterError, match="made in the namespace 'tenant-a', not in 'tenant-b'"):
        radixlang.resume(data, runtime=backend, namespace="tenant-b")
    del data["namespace"]
    with pytest.raises(ParameterError, match="names no namespace"):
        radixlang.resume(data, runtime=backend)


@function
def dated(s: State, due: Any) -> None:
    s += f"{due:%d.%m.} " + gen("x")


def test_a_replay_keeps_its_namespace_and_the_types_of_arguments(
    fake: Make, tmp_path: Path
) -> None:
    backend = fake(lambda p, q: "x")
    file = tmp_path / "replay.json"
    due = datetime.date(2024, 1, 2)
    radixlang.save_replay(dated(due, runtime=backend, namespace="tenant-a"), file)
    backend.flush_cache()
    assert radixlang.verify_replay(dated, file, runtime=backend).difference is None
    assert list(backend._tries) == ["tenant-a"]
    with pytest.raises(ParameterError, match="not in ''"):
        radixlang.verify_replay(dated, file, runtime=backend, namespace="")
