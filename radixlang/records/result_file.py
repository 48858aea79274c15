"""The file to which a batch saves its results and from which it is resumed: JSON lines.

A line has `index`, `row` (a hash of the row's arguments), `values` as JSON, `types` for values that
JSON alone would not restore, `text`, `error`, and `made_by`. A crash may leave a torn last line,
which is cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from radixlang.constraints.typed_values import to_json
from radixlang.errors import ParameterError
from radixlang.records.file_fields import Fields
from radixlang.records.json_text import dump_json, json_lines
from radixlang.records.made_by import difference
from radixlang.records.result import Result
from radixlang.records.typed_json import restored, types_of

_FIELDS = {"index": int, "row": str, "values": dict, "text": str, "made_by": dict}
_BEGINNING = b'{"index": '


class ResultFile:
    """Results of one batch on disk; a file that holds anything else is refused and not changed."""

    def __init__(self, path: Path, made_by: Mapping[str, object]) -> None:
        self.path = path
        self._made_by = dict(made_by)

    def load(self, rows: list[dict[str, object]]) -> dict[int, Result]:
        """Results of earlier runs without an error, by index.

        Raises:
            ParameterError: the file holds something else; it is not changed.
        """
        if self.path.is_dir():
            raise ParameterError(f"save_to {str(self.path)!r} is a folder; name a file in it")
        if not self.path.exists():
            return {}
        data = self.path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        torn = data[len(whole) :]
        if torn and not (torn.startswith(_BEGINNING) or _BEGINNING.startswith(torn)):
            raise self._foreign(whole.count(b"\n") + 1)
        found = self._results(whole, rows)
        if torn:
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        return found

    def append(self, result: Result) -> None:
        """Append one result and flush it to the file."""
        values = dict(result.values)
        entry = {
            "index": result.index,
            "row": _row_key(result.row),
            "values": to_json(values),
            "types": types_of(values),
            "text": result.text,
            "error": str(result.error) if result.error is not None else None,
            "made_by": self._made_by,
        }
        with self.path.open("ab") as file:
            file.write((dump_json(entry) + "\n").encode("utf-8"))

    def _results(self, data: bytes, rows: list[dict[str, object]]) -> dict[int, Result]:
        found: dict[int, Result] = {}
        for number, line in enumerate(json_lines(data.decode("utf-8", "replace")), 1):
            entry = _entry(line)
            if entry is None:
                raise self._foreign(number)
            differs = difference(entry["made_by"], self._made_by)
            if differs is not None:
                raise ParameterError(
                    f"{self.path} holds results that were made otherwise: {differs} (line "
                    f"{number}); give another file, or remove this one to run all rows again"
                )
            index = entry["index"]
            if not 0 <= index < len(rows) or entry["row"] != _row_key(rows[index]):
                raise ParameterError(
                    f"{self.path} holds results of other rows (row {index} differs); "
                    "give another file, or remove this one"
                )
            if not entry.get("error"):
                values = restored(entry["values"], entry.get("types") or {})
                found[index] = Result(index, rows[index], values, entry["text"])
        return found

    def _foreign(self, line: int) -> ParameterError:
        return ParameterError(
            f"{self.path} is no file of results: line {line} is not one of run_batch(save_to=…). "
            "It was left as it is; give another file"
        )


def _entry(line: str) -> Fields | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fits = all(type(entry.get(name)) is kind for name, kind in _FIELDS.items())
    return entry if fits else None


def _row_key(row: Mapping[str, object]) -> str:
    text = dump_json(to_json(dict(row)), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
