"""A bound on time ends what is too slow, and leaves no trace on what comes after."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from radixlang.runtime.time_bound import within


def for_ever() -> None:
    while True:
        pass


def test_a_value_in_time() -> None:
    assert within(5.0, lambda: 7) == 7


def test_too_slow_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"longer than 0\.02 s"):
        within(0.02, for_ever)


def test_no_error_comes_later() -> None:
    for _ in range(50):
        try:
            within(0.001, lambda: time.sleep(0.001))
        except TimeoutError:
            continue
    for _ in range(100_000):
        pass


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
