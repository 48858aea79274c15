"""An interrupt (Ctrl-C) at any place: nothing is left locked, and the next program runs.

Python delivers an interrupt to the main thread where a function begins. These tests deliver one at
the first such places of a call, then at later ones, until the call gets through.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from radixlang import function, gen, select
from radixlang.sampling_params import SamplingParams
from radixlang.state.state import State
from radixlang.testing import FakeBackend

Interrupted = Callable[[int, Callable[[], Any]], bool]
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """What the call returns; fails where it hangs, which leaves its thread behind."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs, or has failed"
    return found[0]


@function
def program(s: State) -> None:
    s += "Q" + gen("a")
    s["seen"] = s["a"]
    group = s.fork(2)
    group += gen("b")
    s.join(group, "b")
    s += select("c", ["x", "y"], scorer=lambda found: [0.0, 1.0])


def answer(prompt: str, params: SamplingParams) -> str:
    return "yes"


@pytest.mark.parametrize("delay", [0.0, 0.0005])
def test_an_interrupt_at_any_place_of_a_run_leaves_the_rest_working(
    interrupted_at: Interrupted, delay: float
) -> None:
    backend = FakeBackend(answer, delay=delay)
    for place in itertools.count(1):
        was_interrupted = interrupted_at(place, lambda: program(runtime=backend, timeout=60))
        state = within(30, lambda: program(runtime=backend, timeout=60))
        assert state["c"] == "y"
        if not was_interrupted:
            break
    assert place > 30


def test_an_interrupt_at_any_place_of_a_batch_leaves_the_rest_working(
    interrupted_at: Interrupted,
) -> None:
    backend = FakeBackend(answer)
    rows: list[dict[str, Any]] = [{} for _ in range(3)]
    for place in itertools.count(1):
        was_interrupted = interrupted_at(place, lambda: program.run_batch(rows, runtime=backend))
        if not was_interrupted:
            break
        assert within(30, lambda: program(runtime=backend))["c"] == "y"
    assert place > 10
