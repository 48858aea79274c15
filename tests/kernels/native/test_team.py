"""The team of threads: ends when told, forgotten in a child, shared by callers."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from radixlang.kernels.native.library import Library
from radixlang.kernels.tools.forests import level_forest
from tests.kernels.native.forest_cases import Case, make_case


@pytest.fixture
def case() -> Case:
    """Enough work for every thread."""
    return make_case(level_forest((1, 24), (300, 90)), head_dim=64)


def size_of(library: Library) -> int:
    return library.action("rl_team_size")()


def test_threads_end_when_told_and_come_back(native: Library, case: Case) -> None:
    expected = case.attend(native, num_threads=1)
    native.action("rl_shutdown")()  # what earlier calls have left
    for threads in (2, 5):
        assert torch.equal(case.attend(native, num_threads=threads), expected)
        assert size_of(native) == threads - 1
        native.action("rl_shutdown")()
        assert size_of(native) == 0
    assert torch.equal(case.attend(native, num_threads=2), expected)


def test_a_child_makes_a_team_of_its_own(native: Library, case: Case) -> None:
    expected = case.attend(native, num_threads=3)
    child = os.fork()
    if child == 0:
        started = size_of(native)
        same = torch.equal(case.attend(native, num_threads=3), expected)
        os._exit(0 if same and started == 0 and size_of(native) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(case.attend(native, num_threads=3), expected)


def test_callers_take_turns(native: Library, case: Case) -> None:
    expected = case.attend(native, num_threads=1)
    same = []

    def call(threads: int) -> None:
        outs = [case.attend(native, num_threads=threads) for _ in range(20)]
        same.append(all(torch.equal(out, expected) for out in outs))

    callers = [threading.Thread(target=call, args=(n,)) for n in (1, 2, 3, 4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert same == [True] * 4
