"""The README's programs run as they stand and print what it shows, on the default model.

Compared are the lines that do not hang on the last bits of a machine's arithmetic: figures of the
tree and the beginnings of answers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def block(language: str, containing: str) -> str:
    """The one fenced block of a language that contains a text."""
    (found,) = [body for kind, body in BLOCKS if kind == language and containing in body]
    return str(found)


def printed(*arguments: str) -> list[str]:
    """Lines that a Python program prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_first_program_prints_what_the_readme_shows(tmp_path: Path) -> None:
    program = tmp_path / "first.py"
    program.write_text(block("python", "def city"), encoding="utf-8")
    shown = block("", "Kyoto is in").splitlines()
    lines = printed(str(program))
    assert lines[0].startswith("Madrid is in Spain. Kyoto is in Japan. In short:")
    assert lines[1:] == shown[1:] == [" Austria", " Egypt", " Peru"]


def test_quick_start_prints_what_the_readme_shows() -> None:
    shown = block("", "Italy: capital?").splitlines()
    lines = printed("examples/quick_start.py")
    assert len(lines) == len(shown)
    assert lines[:8] == shown[:8]
    assert [line for line in lines if line.startswith("prompt tokens")] == [
        line for line in shown if line.startswith("prompt tokens")
    ]


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
