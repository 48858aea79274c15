"""Threads that have done their computing leave no OpenMP workers that would slow the engine's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlang.runtime.process import openmp
from radixlang.runtime.process.openmp import end_team, leaves_no_team
from radixlang.runtime.runtime import Runtime

EXITING = 0x4  # PF_EXITING among the flags of a task, which is still listed once it is joined
TASKS = Path("/proc/self/task")


def num_threads() -> int:
    """Threads below the one that `in_thread` made: a thread has the name of the one that starts it.

    Other threads of the process come and go by themselves.
    """
    own = (TASKS / f"{threading.get_native_id()}/comm").read_text("utf-8").strip()
    count = 0
    for task in TASKS.iterdir():
        with suppress(OSError):  # it has just ended
            name, rest = (task / "stat").read_text("utf-8").split("(", 1)[1].rsplit(")", 1)
            count += name == own and not int(rest.split()[6]) & EXITING
    return count


def in_thread(function: Callable[[], Any]) -> Any:
    """A value computed on a thread of its own, with two OpenMP threads."""
    found: list[Any] = []

    def work() -> None:
        own = threading.get_native_id()
        (TASKS / f"{own}/comm").write_text(f"counted {own}", "utf-8")
        torch.set_num_threads(2)
        found.append(function())

    threads = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    torch.set_num_threads(threads)
    return found[0]


def compute() -> torch.Tensor:
    return torch.randn(1 << 20).exp_()  # far above what one thread would do alone


linux = pytest.mark.parametrize("num_workers", [1 if sys.platform == "linux" else 0])


@linux
def test_a_team_ends_and_comes_back(num_workers: int) -> None:
    def count() -> list[int]:
        counts = [num_threads()]
        for act in (compute, end_team, compute, end_team):
            act()
            counts.append(num_threads() - counts[0])
        return counts[1:]

    assert in_thread(count) == [num_workers, 0, num_workers, 0]


@linux
def test_a_decorated_function_leaves_none_whatever_comes(num_workers: int) -> None:
    @leaves_no_team
    def work(value: int) -> int:
        """What it does."""
        compute()
        during.append(num_threads())
        if not value:
            raise ValueError
        return value

    during: list[int] = []

    def count() -> tuple[int, int]:
        before = num_threads()
        assert work(3) == 3
        with pytest.raises(ValueError):
            work(0)
        return before, num_threads()

    before, after = in_thread(count)
    assert before == after
    assert during == [before + num_workers] * 2
    assert work.__doc__ == "What it does."


def test_a_runtime_starts_with_no_team_but_its_own(tiny_model: Any) -> None:
    def count() -> int:
        compute()
        before = num_threads()
        runtime = Runtime(tiny_model, num_pages=64)
        after = num_threads()
        runtime.close()
        return after - before

    assert in_thread(count) == (0 if sys.platform == "linux" else 1)  # the engine's for the team's


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "_pause", lambda: None)
    end_team()
    assert leaves_no_team(len)("abc") == 3
