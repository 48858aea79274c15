"""Runs the pages of docs/: their code, their commands, and what they say these print.

What a page may hold, each as a comment above a fenced block:

    <!-- model -->            the page runs on the default model; otherwise on a scripted fake
    <!-- fake: {…} -->        the fake's answers from here on, a JSON object as FakeBackend takes it
    <!-- file: name -->       the block is written to a file of the page's folder, not run
    <!-- theirs -->           another system's code, or a sketch: not run

A ```python block is run, in one namespace a page; the ```text block after it is what it printed.
In a ```console block the lines after `$ radixlang …` are what the command printed.
RADIXLANG_UPDATE_DOCS=1 writes what was printed into the page instead of comparing.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import radixlang
from radixlang.cli.main import main as command_line
from radixlang.testing import FakeBackend

BLOCK = re.compile(
    r"(?P<notes>(?:<!--[^\n]*-->\n)*)```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block with the comments above it."""

    notes: dict[str, str]
    kind: str
    body: str
    start: int  # of the body, in the page


def blocks_of(text: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        notes = re.findall(r"<!-- (\w+)(?:: (.*?))? -->", match["notes"])
        found.append(Block(dict(notes), match["kind"], match["body"], match.start("body")))
    return found


class Page:
    """A page being run."""

    def __init__(self, text: str, runtime: Any) -> None:
        self.text = text
        self.runtime = runtime
        self.module = ModuleType("page")
        sys.modules["page"] = self.module  # dataclasses look their module up
        self.printed: list[tuple[Block, str]] = []  # what the page shows, what it was

    def run(self) -> None:
        before: str | None = None  # what the block above printed
        for block in blocks_of(self.text):
            self._script(block.notes)
            if "theirs" in block.notes:
                before = None
            elif "file" in block.notes:
                Path(block.notes["file"]).write_text(block.body, encoding="utf-8")
            elif block.kind == "python":
                before = self._python(block.body)
            elif block.kind == "console":
                self.printed.append((block, self._console(block.body)))
            elif block.kind == "text" and before is not None:
                self.printed.append((block, before))
                before = None

    def updated(self) -> str:
        """The page with what was printed in place of what it shows."""
        text = self.text
        for block, printed in reversed(self.printed):
            text = text[: block.start] + printed + text[block.start + len(block.body) :]
        return text

    def _script(self, notes: dict[str, str]) -> None:
        if "fake" in notes:
            self.runtime = FakeBackend(json.loads(notes["fake"]))
            radixlang.set_default_runtime(self.runtime)

    def _python(self, body: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(body, "page.py", "exec"), vars(self.module))
        return out.getvalue()

    def _console(self, body: str) -> str:
        shown = []
        for line in body.splitlines():
            if line.startswith("$ radixlang"):
                shown.append(line)
                out = io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                    code = command_line(shlex.split(line)[2:])
                shown += [text.rstrip() for text in out.getvalue().splitlines()]
                if code:
                    shown.append(f"[exit code {code}]")
        return "\n".join(shown) + "\n"


@pytest.fixture(scope="session")
def page_model() -> Iterator[Any]:
    """The default model, for pages that run on it."""
    from radixlang.runtime.runtime import Runtime

    with Runtime(seed=0) as runtime:
        yield runtime


@pytest.fixture
def run_page(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path], Page]]:
    """Runs a page in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RADIXLANG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(path: Path) -> Page:
        text = path.read_text(encoding="utf-8")
        if "<!-- model -->" in text:
            runtime = request.getfixturevalue("page_model")
            runtime.flush_cache()
            runtime.reset_stats()
        else:
            runtime = FakeBackend()
        radixlang.set_default_runtime(runtime)
        page = Page(text, runtime)
        page.run()
        return page

    yield run
    radixlang.set_default_runtime(None)
