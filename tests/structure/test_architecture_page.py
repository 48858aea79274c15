"""docs/architecture.md names files in the order of a request; each is reached as the page says."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINE = re.compile(
    r"^(?P<number>\d+)\. `(?P<path>[\w/]+\.py)`"
    r"(?: by `(?P<name>\w+)`)?(?:, from (?P<after>\d+))?[:.]",
    re.MULTILINE,
)
WAYS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))


@dataclass(frozen=True)
class Stop:
    """One line of a way."""

    number: int
    path: Path
    name: str | None
    after: int


def stops(text: str) -> list[Stop]:
    found = []
    for match in LINE.finditer(text):
        number = int(match["number"])
        after = int(match["after"] or number - 1)
        found.append(Stop(number, ROOT / match["path"], match["name"], after))
    return found


def names_in(path: Path) -> set[str]:
    """Names that a file uses, as variables, attributes, imports or quoted annotations."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.name for alias in node.names}
    return names


def defined_in(path: Path) -> set[str]:
    """Functions, classes, methods and constants that a file defines."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def is_reached(caller: Path, stop: Stop) -> bool:
    """The caller uses what the file defines, or the file takes up what the caller defines."""
    assert stop.name is not None
    used, made = names_in(caller), defined_in(caller)
    calls = stop.name in used and stop.name in defined_in(stop.path)
    return calls or (stop.name in made and stop.name in names_in(stop.path))


def test_the_page_has_three_ways_and_every_line_is_read() -> None:
    assert len(WAYS) == 3
    for text in WAYS.values():
        assert len(stops(text)) == len(re.findall(r"^\d+\. ", text, re.M))
        assert [stop.number for stop in stops(text)] == list(range(1, len(stops(text)) + 1))


@pytest.mark.parametrize("way", WAYS)
def test_each_file_is_reached_as_the_page_says(way: str) -> None:
    found = stops(WAYS[way])
    wrong = [
        f"{stop.number}. {stop.path.name} is not reached by {stop.name!r} from {caller.path.name}"
        for stop in found[1:]
        if not is_reached((caller := found[stop.after - 1]).path, stop)
    ]
    assert wrong == []
    assert all(stop.path.is_file() for stop in found)


@pytest.mark.parametrize("way", WAYS)
def test_no_file_is_entered_twice(way: str) -> None:
    paths = [stop.path for stop in stops(WAYS[way])]
    assert len(paths) == len(set(paths))


def test_the_counts_at_the_end_are_those_of_the_lists() -> None:
    counts = [len(stops(text)) for text in WAYS.values()]
    assert "the paths have {}, {} and {}".format(*counts) in " ".join(PAGE.split())
