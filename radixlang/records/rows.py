"""Rows of a batch from data in memory, each as a dict of arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from radixlang.errors import ParameterError
from radixlang.suggestions import shortened


def as_rows(rows: object, names: Iterable[str] = ()) -> list[dict[str, object]]:
    """The rows as dicts of arguments.

    Args:
        rows: an iterable of mappings, such as a list of dicts or a datasets.Dataset; or a table: a
            DataFrame of pandas or polars, whose missing cells become None, or a Table of pyarrow.
        names: the program's arguments, for what a message shows.

    Raises:
        ParameterError: the data is something else, or a row is not a mapping.
    """
    shape = "{" + ", ".join(f"{name!r}: …" for name in names) + "}"
    table = _table_rows(rows)
    if isinstance(rows, (str, bytes)) or not isinstance(table, Iterable):
        raise ParameterError(
            f"rows are a list of dicts [{shape}] or a table, got {shortened(rows)}; "
            "radixlang.read_rows(path) reads a file"
        )
    if isinstance(rows, Mapping):
        raise ParameterError(
            f"rows are a list of dicts [{shape}] or a table, got a dict of {shortened([*rows])}; "
            "one row is [{…}], and of a DatasetDict take one split"
        )
    return [_row(index, row, shape) for index, row in enumerate(table)]


def _table_rows(rows: object) -> object:
    if hasattr(rows, "iter_rows") and hasattr(rows, "columns"):  # polars
        return rows.iter_rows(named=True)
    if hasattr(rows, "to_pylist"):  # pyarrow
        return rows.to_pylist()
    if hasattr(rows, "itertuples") and hasattr(rows, "to_dict"):  # pandas
        return ({key: _known(cell) for key, cell in row.items()} for row in rows.to_dict("records"))
    return rows


def _known(cell: object) -> object:
    """A cell of pandas; None for NaN, NaT and NA."""
    is_missing = type(cell).__name__ in ("NAType", "NaTType")
    return None if is_missing or (isinstance(cell, float) and math.isnan(cell)) else cell


def _row(index: int, row: object, shape: str) -> dict[str, object]:
    if not isinstance(row, Mapping):
        raise ParameterError(
            f"row {index} is no dict of arguments but {shortened(row)}; write {shape}"
        )
    return dict(row)
