"""Bars of progress: seen at a terminal and in a notebook, silent elsewhere."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from radixlang import State, function, gen, progress
from radixlang.testing import FakeBackend


@function
def ask(s: State, q: str) -> None:
    s += q + gen("x")


ROWS = [{"q": str(index)} for index in range(3)]


def in_shell(patch: pytest.MonkeyPatch, name: str) -> None:
    """As if this process ran in a shell of IPython."""
    module = ModuleType("IPython")
    module.get_ipython = lambda: type(name, (), {})()  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "IPython", module)
    patch.setattr(progress, "DELAY_S", 0)


@pytest.mark.parametrize(
    ("shell", "is_seen"), [("ZMQInteractiveShell", True), ("TerminalInteractiveShell", False)]
)
def test_a_notebook_shows_the_bar_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, shell: str, is_seen: bool
) -> None:
    in_shell(monkeypatch, shell)
    ask.run_batch(ROWS, runtime=FakeBackend())
    assert ("0/3" in capsys.readouterr().err) is is_seen


def test_nothing_is_shown_elsewhere_unless_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0)
    ask.run_batch(ROWS, runtime=FakeBackend())
    assert list(progress.each([1, 2], "loading", 2, "layer")) == [1, 2]
    assert capsys.readouterr().err == ""
    ask.run_batch(ROWS, runtime=FakeBackend(), progress=True)
    assert "3/3" in capsys.readouterr().err


def test_loading_shows_its_bar_in_a_notebook(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    in_shell(monkeypatch, "ZMQInteractiveShell")
    assert list(progress.each([1, 2], "loading layers", 2, "layer")) == [1, 2]
    assert "loading layers:   0%" in capsys.readouterr().err


def test_a_notebook_with_widgets_has_the_bar_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    in_shell(monkeypatch, "ZMQInteractiveShell")
    monkeypatch.setitem(sys.modules, "ipywidgets", ModuleType("ipywidgets"))
    sys.modules["ipywidgets"].__spec__ = type("Spec", (), {})()  # type: ignore[assignment]
    assert progress._kind_of_bar().__module__ == "tqdm.notebook"
