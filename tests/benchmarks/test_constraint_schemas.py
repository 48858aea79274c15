"""All of MaskBench by one command: a folder of cases or JSON lines, judged text by text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.constraint_schemas import mask_bench
from benchmarks.constraints import mask_bench_rows

CASES: dict[str, Any] = {
    "clean": {"schema": {"type": "integer"}, "tests": [{"data": 1, "valid": True},
                                                       {"data": "x", "valid": False}]},
    "ordered": {"schema": {"properties": {"a": {}, "b": {}}},
                "tests": [{"data": {"b": 1, "a": 2}, "valid": True}]},
    "refused": {"schema": {"type": "array", "uniqueItems": True},
                "tests": [{"data": [1, 1], "valid": False}]},
    "wrong": {"schema": {"type": "string"}, "tests": [{"data": "x", "valid": False}]},
}  # fmt: skip


@pytest.fixture(params=["folder", "lines", "packed lines"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The cases in each form."""
    lines = "".join(json.dumps({"name": n, **case}) + "\n" for n, case in CASES.items())
    if request.param == "folder":
        for name, case in CASES.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(case), encoding="utf-8")
        return tmp_path
    if request.param == "lines":
        path = tmp_path / "cases.jsonl"
        path.write_text(lines, encoding="utf-8")
        return path
    path = tmp_path / "cases.jsonl.gz"
    path.write_bytes(gzip.compress(lines.encode()))
    return path


def test_cases_are_judged_alike_in_every_form(source: Path) -> None:
    strict, lenient = mask_bench(True, source), mask_bench(False, source)
    assert (strict.num_passed, lenient.num_passed) == (1, 2)
    assert dict(strict.refused) == {"uniqueItems": ["refused"]}
    for verdicts in (strict, lenient):
        assert dict(verdicts.under) == {"accepted": ["wrong"]}
        assert list(verdicts.over.values()) == [["ordered"]]


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    ((_, _, told),) = mask_bench_rows({}, tmp_path / "nowhere")
    assert told.startswith("nowhere is not in ")
