"""The view of a run while it goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from radixlang import State, function, gen, on_run
from radixlang.errors import ParameterError, RequestError

Make = Callable[..., Any]
WAIT_S = 60


@function
def program(s: State, go_on: Any = None) -> None:
    s += "Question" + gen("x")
    assert s["x"] == "first answer"
    if go_on is not None:
        assert go_on.wait(WAIT_S)
    s += gen("y")


def test_a_file_grows_with_its_run_and_ends_with_it(fake: Make, tmp_path: Path) -> None:
    file, go_on, drawn = tmp_path / "page.html", threading.Event(), threading.Event()

    def watch(state: State) -> None:
        view = state.live(file, every_s=0.01)
        assert view is not None
        draw = view._draw

        def noticed(run: Any) -> None:
            draw(run)
            if "first answer" in file.read_text(encoding="utf-8"):
                drawn.set()

        view._draw = noticed
        views.append(view)

    views: list[Any] = []
    with on_run(watch, when="start"):
        stream = program.stream(go_on, runtime=fake(["first answer", "second answer"]))
        assert drawn.wait(WAIT_S)
        assert "running for" in file.read_text(encoding="utf-8")
        go_on.set()
        assert list(stream.variable("y")) != []
    views[0].wait(WAIT_S)
    page = file.read_text(encoding="utf-8")
    assert "second answer" in page
    assert 'data-live=""' in page
    assert list(tmp_path.iterdir()) == [file]  # nothing half written is left


def test_a_failed_run_ends_its_file_with_the_failure(fake: Make, tmp_path: Path) -> None:
    @function
    def fails(s: State) -> None:
        views.append(s.live(tmp_path / "page.html"))
        s += gen("x")

    views: list[Any] = []
    fails.run(runtime=fake([RequestError("out of tea")]), check=False)
    views[0].wait(WAIT_S)
    assert "out of tea" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_cell_of_a_notebook_is_updated(fake: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []

    class Handle:
        def update(self, html: str) -> None:
            updates.append(html)

    display = ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda shown, display_id: Handle()  # type: ignore[attr-defined]
    shell = ModuleType("IPython")
    shell.get_ipython = lambda: type("ZMQInteractiveShell", (), {})()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    @function
    def shows(s: State) -> None:
        views.append(s.live())
        s += gen("x")

    views: list[Any] = []
    shows(runtime=fake(["the answer"]))
    views[0].wait(WAIT_S)
    assert "the answer" in updates[-1]
    assert "<script" not in updates[-1]


def test_live_needs_a_file_outside_a_notebook(fake: Make, tmp_path: Path) -> None:
    state = program(runtime=fake(["first answer", "b"]))
    with pytest.raises(ParameterError, match="give it a file"):
        state.live()
    with pytest.raises(ParameterError, match="is no folder"):
        state.live(tmp_path / "none" / "page.html")


def test_live_does_nothing_while_a_program_is_traced(tmp_path: Path) -> None:
    @function
    def shows(s: State) -> None:
        assert s.live(tmp_path / "page.html") is None
        s += gen("x")

    assert shows.trace().is_static
    assert list(tmp_path.iterdir()) == []


def test_a_view_that_cannot_be_drawn_fails_no_run(fake: Make, tmp_path: Path) -> None:
    state = program(runtime=fake(["first answer", "b"]))
    from radixlang.views.live import LiveView

    def broken(_: Any) -> None:
        raise OSError("disk full")

    with pytest.warns(RuntimeWarning, match="ended with OSError: disk full"):
        LiveView(state._run(), broken, 0.1).wait(WAIT_S)


def test_a_process_that_ends_at_once_leaves_the_last_page(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    code = (
        "from radixlang import function, gen\nfrom radixlang.testing import FakeBackend\n"
        "@function\ndef program(s):\n"
        f"    s.live({str(file)!r}, every_s=30)\n    s += gen('x')\n"
        "program(runtime=FakeBackend(['the answer']))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=WAIT_S)
    assert "the answer" in file.read_text(encoding="utf-8")
