"""A runtime that nobody names any more is freed, with its weights, whatever was run on it."""

from __future__ import annotations

import gc
import time
import weakref
from typing import Any

from radixlang import State, assistant, function, gen, select, user
from radixlang.runtime.runtime import Runtime


@function
def answers(s: State) -> None:
    s += user("Pick a number.")
    s += assistant(gen("number", regex="[0-9]{2}"))
    left, right = s.fork(2)
    left += user("Is it even?") + assistant(select("even", ["yes", "no"]))
    right += user("Why?") + assistant(gen("why", max_tokens=4))
    s += user(left["even"] + right["why"])


def test_a_closed_runtime_is_freed(tiny_model: Any) -> None:
    runtime = Runtime(tiny_model, num_pages=4096, seed=0)
    state = answers(runtime=runtime)
    assert len(state["number"]) == 2
    runtime.close()
    kept = weakref.ref(runtime)
    del runtime, state
    deadline = time.monotonic() + 20
    while kept() is not None and time.monotonic() < deadline:  # a thread may be at its last call
        gc.collect()
        time.sleep(0.01)
    assert kept() is None
