"""A bound on time ends what is too slow, and leaves no trace on what comes after."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from radixlang.runtime.constraints import time_limit as time_bound
from radixlang.runtime.constraints.time_limit import AGAIN_S, within
from radixlang.runtime.process.switch_interval import SWITCH_S


def for_ever() -> None:
    while True:
        pass


def test_a_value_in_time() -> None:
    assert within(5.0, lambda: 7) == 7


def test_too_slow_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"longer than 0\.02 s"):
        within(0.02, for_ever)


def test_no_error_comes_later() -> None:
    """Some end just in time, some just too late."""

    def compute() -> None:
        last_s = time.thread_time() + AGAIN_S
        while time.thread_time() < last_s:
            pass

    for _ in range(20):
        try:
            within(0.001, compute)
        except TimeoutError:
            continue
    for _ in range(100_000):
        pass


def test_an_error_at_the_very_end_is_a_timeout_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come at the entry of what ends the bound, which then has not ended it."""
    end, calls = time_bound._Bound.end, []

    def late(bound: Any) -> None:
        calls.append(bound)
        if len(calls) == 1:
            raise time_bound._OutOfTime
        end(bound)

    monkeypatch.setattr(time_bound._Bound, "end", late)
    with pytest.raises(TimeoutError):
        within(5.0, lambda: 1)
    assert len(calls) == 2
    assert calls[0]._ended.is_set()


def test_threads_change_places_often_until_the_last_bounded_one_ends() -> None:
    usual_s = sys.getswitchinterval()
    found = []

    def inner() -> None:
        found.append(sys.getswitchinterval())

    def outer() -> None:
        within(5.0, inner)
        inner()

    within(5.0, outer)
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        within(0.01, for_ever)
    assert found == pytest.approx([SWITCH_S, SWITCH_S])
    assert sys.getswitchinterval() == usual_s


def test_a_traced_thread_goes_on() -> None:
    """As under a debugger, a coverage tool or hypothesis."""

    def tracer(*_: Any) -> Any:
        return tracer

    def traced() -> None:
        sys.settrace(tracer)
        done.extend(within(5.0, lambda: 1) for _ in range(20))

    done: list[int] = []
    thread = threading.Thread(target=traced, daemon=True)
    thread.start()
    thread.join(10)
    assert len(done) == 20


class Slow:
    """Is finalised for as long as a bound sends its error."""

    def __del__(self) -> None:
        last_s = time.thread_time() + 2 * AGAIN_S
        while time.thread_time() < last_s:
            pass


def finalise_and_run_for_ever() -> None:
    Slow()
    for_ever()


def test_an_error_that_a_finaliser_drops_is_not_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", heard.append)
    usual = sys.unraisablehook
    with pytest.raises(TimeoutError):
        within(0.01, finalise_and_run_for_ever)
    assert not heard
    assert sys.unraisablehook is usual


class Broken:
    """Fails while it is finalised."""

    def __del__(self) -> None:
        raise KeyError


def test_other_errors_of_finalisers_are_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda remark: heard.append(remark.exc_type))
    within(5.0, Broken)
    assert heard == [KeyError]
