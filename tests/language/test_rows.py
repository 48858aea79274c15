"""Rows of batches: tables in memory, and files of several kinds."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from radixlang import function, gen, read_rows
from radixlang.errors import ParameterError
from radixlang.records.rows import as_rows
from radixlang.state.state import State

Make = Callable[..., Any]
ROWS = [{"name": "Ada", "size": 2}, {"name": "Bob", "size": None}]


@function
def greet(s: State, name: str, size: int = 1) -> None:
    s += f"{name} {size}:" + gen("answer")


class PandasFrame:
    """As much of a pandas DataFrame as a batch asks for: a missing cell is NaN."""

    def __iter__(self) -> Iterator[str]:
        return iter(["name", "size"])

    def itertuples(self) -> Iterator[Any]:
        raise NotImplementedError

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [{"name": "Ada", "size": 2}, {"name": "Bob", "size": float("nan")}]


class PolarsFrame:
    """As much of a polars DataFrame as a batch asks for."""

    columns = ("name", "size")

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter(ROWS)


class ArrowTable:
    """As much of a pyarrow Table as a batch asks for; it cannot be iterated."""

    def to_pylist(self) -> list[dict[str, Any]]:
        return ROWS


class HubDataset:
    """As much of a datasets.Dataset as a batch asks for: its items are rows."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


@pytest.mark.parametrize("table", [PandasFrame, PolarsFrame, ArrowTable, HubDataset])
def test_a_batch_takes_tables(fake: Make, table: Any) -> None:
    assert as_rows(table()) == ROWS
    results = greet.run_batch(table(), runtime=fake())
    assert [result.row for result in results] == ROWS
    assert [result.text.split(":")[0] for result in results] == ["Ada 2", "Bob None"]


def test_rows_given_are_never_changed(fake: Make) -> None:
    rows: list[dict[str, Any]] = [{"name": "Ada"}]
    greet.run_batch(rows, runtime=fake())
    assert rows == [{"name": "Ada"}]


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("a.jsonl", '{"a": 1}\n\n{"a": "x\u2028y"}\n', [{"a": 1}, {"a": "x\u2028y"}]),
        ("a.txt", '{"a": 1}', [{"a": 1}]),
        ("a.json", '[{"a": 1}, {"a": [2]}]', [{"a": 1}, {"a": [2]}]),
        (
            "a.csv",
            'a,b\n1,"x, ""y""\nz"\n,2\n',
            [{"a": "1", "b": 'x, "y"\nz'}, {"a": "", "b": "2"}],
        ),
        ("a.tsv", "\ufeffa\tb\n1\tx,y\n", [{"a": "1", "b": "x,y"}]),
        ("a.csv", "", []),
    ],
)
def test_files_of_rows(tmp_path: Path, name: str, text: str, rows: list[Any]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_rows(tmp_path / name) == rows


@pytest.mark.parametrize(
    ("name", "text", "what", "remedy"),
    [
        ("a.jsonl", '{"a": 1}\n{"a"', r"a\.jsonl:2: not a line of JSON", "one line such as"),
        ("a.jsonl", "[1]", r"a\.jsonl:1: a row is an object", "such as"),
        ("a.json", '{"a": 1}\n{"a": 2}', "not JSON", r"\.jsonl"),
        ("a.json", '{"a": 1}', "a list of objects", "such as"),
        ("a.csv", "a,b\n1,2\n1\n", r"a\.csv:3: 1 cells for 2 columns", "in quotes"),
        ("a.csv", "a,a\n1,2\n", r"a\.csv:1: ", "each once"),
        ("a.csv", 'a\n"x"y\n', r"a\.csv:2: ", "is written"),
        ("none.csv", None, "cannot read the rows of .*none.csv", "No such file"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(
    tmp_path: Path, name: str, text: str | None, what: str, remedy: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ParameterError, match=what) as caught:
        read_rows(tmp_path / name)
    assert remedy.replace("\\", "") in str(caught.value)


def test_parquet_and_datasets_are_read_by_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow: Any = types.ModuleType("pyarrow.parquet")
    arrow.read_table = lambda path: ArrowTable() if path.endswith("a.parquet") else None
    hub: Any = types.ModuleType("datasets")
    hub.load_from_disk = lambda path: HubDataset() if path == str(tmp_path) else None
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", arrow)
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert read_rows(tmp_path / "a.parquet") == ROWS
    assert read_rows(tmp_path) == ROWS


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("", "datasets")])
def test_a_package_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for module in ("pyarrow", "pyarrow.parquet", "pandas", "datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ParameterError, match=f"needs the package {package}: pip install"):
        read_rows(tmp_path / name)


def test_cells_are_typed_after_the_program(tmp_path: Path, capsys: Any) -> None:
    from radixlang.cli.main import main

    (tmp_path / "p.py").write_text(
        "from radixlang import function, gen\n\n\n@function\n"
        "def p(s, code: str, n: int, tags=[], mood='calm', on=True):\n"
        "    s += f'{code!r} {n!r} {tags!r} {mood!r} {on!r}' + gen('x', max_tokens=1)\n"
        "    return None\n"
    )
    (tmp_path / "r.csv").write_text('code,n,tags,mood,on\n007,3,"[1, 2]",,False\n,4,,wild,\n')
    command = ["run", f"{tmp_path}/p.py", "--rows", f"{tmp_path}/r.csv", "--model", "fake"]
    assert main([*command, "--out", f"{tmp_path}/out.jsonl"]) == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    found = {row["index"]: row["text"] for row in map(json.loads, lines)}
    assert found[0].startswith("'007' 3 [1, 2] 'calm' False")
    assert found[1].startswith("'' 4 [] 'wild' True")
    (tmp_path / "r.csv").write_text("code,n\nx,three\n")
    assert main(command) == 2
    assert "row 0 of " in capsys.readouterr().err
