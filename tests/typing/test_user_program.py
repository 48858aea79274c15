"""The typed front door: what mypy and pyright say of a user's program, right and wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixlang.keywords import (
    ADAPTER_NAMES,
    CONSTRAINT_NAMES,
    CONSTRAINT_OPTIONS,
    RUN_NAMES,
    THINK_NAMES,
    BatchKeywords,
    GenKeywords,
    RunKeywords,
)
from radixlang.program.program import Program
from radixlang.sampling_params import PARAM_NAMES, SamplingKeywords

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import launch_overloads  # noqa: E402

ROOT = HERE.parents[1]


def by_mypy(file: str) -> dict[int, str]:
    """Errors of mypy by line."""
    command = [sys.executable, "-m", "mypy", "--config-file", "tests/typing/mypy.ini"]
    told = subprocess.run(
        [*command, f"tests/typing/{file}"], cwd=ROOT, capture_output=True, text=True
    )
    assert told.returncode in (0, 1), told.stderr
    found = re.findall(rf"{file}:(\d+): error: (.*)", told.stdout)
    return {int(line): message for line, message in found}


def by_pyright(file: str) -> dict[int, str]:
    """Errors of pyright by line."""
    pyright = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable]
    told = subprocess.run(
        [*pyright, "--project", "tests/typing", "--outputjson", f"tests/typing/{file}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert told.returncode in (0, 1), told.stderr
    found = json.loads(told.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1: each["message"] for each in found}


Checker = Callable[[str], dict[int, str]]
CHECKERS: list[Checker] = [by_mypy, by_pyright]


@pytest.mark.parametrize("check", CHECKERS)
def test_a_right_program_has_no_finding(check: Checker) -> None:
    assert check("user_program.py") == {}


@pytest.mark.parametrize("check", CHECKERS)
def test_every_mistake_is_found_on_its_line(check: Checker) -> None:
    lines = (HERE / "wrong_program.py").read_text(encoding="utf-8").splitlines()
    wrong = {index: line for index, line in enumerate(lines, 1) if "# wrong:" in line}
    assert len(wrong) > 30
    found = check("wrong_program.py")
    assert {index: lines[index - 1] for index in found} == wrong


def test_keywords_are_the_options_that_are_known() -> None:
    constraints = {*CONSTRAINT_NAMES, *CONSTRAINT_OPTIONS}
    batch = {"max_workers", "max_in_flight", "save_to"}
    assert set(SamplingKeywords.__annotations__) == set(PARAM_NAMES)
    assert set(RunKeywords.__annotations__) == {*RUN_NAMES, *PARAM_NAMES}
    assert set(BatchKeywords.__annotations__) == {*RUN_NAMES, *PARAM_NAMES, *batch}
    own = {"n", *ADAPTER_NAMES, *THINK_NAMES, *constraints}
    assert set(GenKeywords.__annotations__) == {*own, *PARAM_NAMES}


def test_calls_with_options_are_written_from_the_keywords() -> None:
    """If this fails: `python tests/typing/launch_overloads.py`."""
    text = launch_overloads.FILE.read_text(encoding="utf-8")
    assert launch_overloads.written(text) == text
    assert set(launch_overloads.options()) == set(RunKeywords.__annotations__)


def test_help_shows_the_options_of_a_batch() -> None:
    told = Program.run_batch.__doc__
    assert all(name in told for name in (*RUN_NAMES, "progress", "max_workers", "save_to"))
