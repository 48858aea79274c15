"""A program ends after all that it has handed over, whoever is at work at that moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import function, gen
from radixlang.errors import ProgramError
from radixlang.execution.run import Run
from radixlang.state.state import State

Make = Callable[..., Any]


class BusyExecutor:
    """Another thread is at a command of the run until the program has said that it has ended."""

    def __init__(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_busy, self._may_go_on = threading.Event(), threading.Event()
        for name in ("end_program", "fail_from_program"):
            monkeypatch.setattr(run, name, self._then_go_on(getattr(run, name)))
        thread = threading.Thread(target=run.loop.post, args=(self._command,))
        thread.start()
        assert self._is_busy.wait(20)

    def _command(self) -> None:
        self._is_busy.set()
        assert self._may_go_on.wait(20)

    def _then_go_on(self, end: Callable[..., None]) -> Callable[..., None]:
        def ended(*args: BaseException) -> None:
            end(*args)
            self._may_go_on.set()

        return ended


def test_what_a_program_appends_last_is_in_its_text(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    @function
    def program(s: State) -> None:
        s += "one " + gen("a")
        assert s["a"] == "two"
        BusyExecutor(s._run(), monkeypatch)
        s += " three"

    assert program(runtime=fake(["two"])).text() == "one two three"


def test_what_a_program_raises_last_is_the_error_of_its_run(
    fake: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []

    @function
    def program(s: State) -> None:
        s += "one " + gen("a")
        assert s["a"] == "two"
        runs.append(s._run())
        BusyExecutor(s._run(), monkeypatch)
        raise ValueError("no third")

    with pytest.raises(ValueError, match="no third"):
        program(runtime=fake(["two"]))
    (run,) = runs
    run.readers.wait(lambda: run.finished)
    assert isinstance(run.error, ProgramError)
    assert "no third" in str(run.error)
