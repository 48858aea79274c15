"""Rows of a batch in files: JSON lines, JSON, CSV, Parquet, and folders of datasets."""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
from pathlib import Path
from typing import Any

from radixlang.errors import ParameterError
from radixlang.records.json_text import json_lines
from radixlang.records.rows import as_rows

TABLE_FILES = (".csv", ".tsv")  # whose cells are text


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, object]]:
    """The rows of a file, each a dict of arguments, for `run_batch`.

    Args:
        path: `.json` is one list of objects; `.csv` and `.tsv` have names in their first line, and
            text in their cells; `.parquet` needs pyarrow or pandas; a folder was written by
            `Dataset.save_to_disk` and needs datasets. Anything else is JSON lines.

    Raises:
        ParameterError: it cannot be read, or a row is no object; with file and line.
    """
    file = Path(path)
    if file.is_dir():
        return as_rows(_package("datasets", file).load_from_disk(str(file)))
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        return as_rows(_parquet(file))
    text = _text(file)
    if suffix in TABLE_FILES:
        return _table(text, str(file), "\t" if suffix == ".tsv" else ",")
    return _json(text, str(file)) if suffix == ".json" else parse_json_lines(text, str(file))


def parse_json_lines(text: str, name: str) -> list[dict[str, object]]:
    """Rows of JSON lines; `name` is what errors call their source."""
    return [
        _object(line, f"{name}:{number}")
        for number, line in enumerate(json_lines(text), 1)
        if line.strip()
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"cannot read the rows of {file}: {error}") from error


def _object(line: str, place: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ParameterError(
            f"{place}: not a line of JSON: {error}; a row is one line such as "
            '{"name": "x"}, and a .json file holds one list of them'
        ) from error
    if not isinstance(row, dict):
        raise ParameterError(
            f'{place}: a row is an object of arguments such as {{"name": "x"}}, got {line:.60}'
        )
    return row


def _json(text: str, name: str) -> list[dict[str, object]]:
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise ParameterError(
            f"{name}: not JSON: {error}; rows one a line go into a .jsonl file"
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParameterError(f'{name}: rows are a list of objects such as [{{"name": "x"}}]')
    return rows


def _table(text: str, name: str, separator: str) -> list[dict[str, object]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[dict[str, object]] = []
    names: list[str] = []
    try:
        for cells in reader:
            if not names:
                names = [cell.strip() for cell in cells]
                _check_names(names, f"{name}:{reader.line_num}")
            elif cells:
                rows.append(_named(names, cells, f"{name}:{reader.line_num}"))
    except csv.Error as error:
        raise ParameterError(
            f'{name}:{reader.line_num}: {error}; a cell with a quote is written "…""…"'
        ) from error
    return rows


def _check_names(names: list[str], place: str) -> None:
    if "" in names or len(set(names)) < len(names):
        raise ParameterError(
            f"{place}: the first line names the columns, each once, after the program's "
            f"arguments; got {', '.join(map(repr, names))}"
        )


def _named(names: list[str], cells: list[str], place: str) -> dict[str, object]:
    if len(cells) != len(names):
        raise ParameterError(
            f"{place}: {len(cells)} cells for {len(names)} columns; a cell with the separator in "
            "it is put in quotes"
        )
    return dict(zip(names, cells, strict=True))


def _parquet(file: Path) -> object:
    try:
        module = importlib.import_module("pyarrow.parquet")
        return module.read_table(str(file))
    except ImportError:
        return _package("pandas", file).read_parquet(file)
    except Exception as error:  # pyarrow's own kinds
        raise ParameterError(f"cannot read the rows of {file}: {error}") from error


def _package(name: str, file: Path) -> Any:  # a package that may be missing
    try:
        return importlib.import_module(name)
    except ImportError as error:
        install = "pyarrow" if name == "pandas" else name
        raise ParameterError(
            f"reading {file} needs the package {install}: pip install {install}; or save the rows "
            "as .jsonl or .csv"
        ) from error
