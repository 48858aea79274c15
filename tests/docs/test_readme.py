"""The README's programs run as they stand and print what it shows, on the default model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
Steady = Callable[[str], str]


def block(language: str, containing: str) -> re.Match[str]:
    """The one fenced block of a language that contains a text; its body is `body`."""
    text = README.read_text(encoding="utf-8")
    blocks = re.finditer(r"^```(?P<kind>\w*)\n(?P<body>(?:(?!```).*\n)*)```$", text, re.MULTILINE)
    (found,) = [each for each in blocks if each["kind"] == language and containing in each["body"]]
    return found


def printed(*arguments: str) -> str:
    """What a Python program prints; it must print nothing else."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def compare(containing: str, actual: str, steady: Steady) -> None:
    """The block shows what was printed; or, where that is asked for, becomes it."""
    shown = block("", containing)
    if os.environ.get("RADIXLANG_UPDATE_DOCS"):
        text = shown.string
        README.write_text(text[: shown.start("body")] + actual + text[shown.end("body") :], "utf-8")
        shown = block("", containing)
    assert steady(shown["body"]) == steady(actual)


@pytest.mark.model
def test_first_program_prints_what_the_readme_shows(tmp_path: Path, steady: Steady) -> None:
    program = tmp_path / "first.py"
    program.write_text(block("python", "def city")["body"], encoding="utf-8")
    compare("Kyoto is in", printed(str(program)), steady)


@pytest.mark.model
def test_quick_start_prints_what_the_readme_shows(steady: Steady) -> None:
    compare("Italy: capital?", printed("examples/quick_start.py"), steady)


def test_shared_tokens_are_those_of_the_drawing() -> None:
    text = README.read_text(encoding="utf-8")
    shared = re.search(r"The (\d+) tokens that the four\s+branches share", text)
    assert shared is not None
    trunk = [int(n) for n in re.findall(r"\[(\d+)", block("", "Italy: capital?")["body"])[:2]]
    assert int(shared[1]) == sum(trunk)


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
