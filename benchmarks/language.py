"""What the language costs an operation, on the scripted fake.

    python benchmarks/language.py

Each row runs the same operations twice: through a program, and straight on the fake's branches.
The difference is the language's own time. CPU time of the process is counted, so the fake's
thread is in both columns and other processes are in none.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from radixlang import function, gen
from radixlang.sampling_params import SamplingParams
from radixlang.state.state import State
from radixlang.testing.fake_backend import FakeBackend

COUNT = 2000
GREEDY = SamplingParams(max_tokens=4)


def answer(prompt: str, params: Any) -> str:
    return "ok"


@function
def static(s: State, n: int) -> None:
    group = s.fork(n)
    group += lambda i: f"branch {i} " + gen("x", max_tokens=4)
    s.join(group, "x")


@function
def stepwise(s: State, n: int) -> None:
    for index in range(n):
        branch = s.copy()
        branch += f"branch {index} " + gen("x", max_tokens=4)
        branch["x"]


def static_by_hand(backend: FakeBackend, n: int) -> None:
    root = backend.new_branch()
    waiting = []
    for index, branch in enumerate(root.fork(n)):
        branch.extend(f"branch {index} ")
        waiting.append((branch, branch.generate(GREEDY)))
    for branch, generation in waiting:
        generation.result()
        branch.release()
    root.release()


def stepwise_by_hand(backend: FakeBackend, n: int) -> None:
    root = backend.new_branch()
    for index in range(n):
        (branch,) = root.fork(1)
        branch.extend(f"branch {index} ")
        branch.generate(GREEDY).result()
        branch.release()
    root.release()


def cpu_seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """The least CPU time of several calls."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        call()
        best = min(best, time.process_time() - started)
    return best


def overhead(program: Any, by_hand: Callable[[FakeBackend, int], None]) -> tuple[float, float]:
    """Microseconds an operation (fork, text, gen, read): through the language, and by hand."""
    operations = 4 * COUNT
    through = cpu_seconds(lambda: program(n=COUNT, runtime=FakeBackend(answer)))
    direct = cpu_seconds(lambda: by_hand(FakeBackend(answer), COUNT))
    return through / operations * 1e6, direct / operations * 1e6


def compiled_row() -> tuple[float, float]:
    """Microseconds a row of 5 nodes, and the same by hand, for a compiled program."""

    @function
    def row(s: State, q: str) -> None:
        s += f"Question: {q}\nAnswer: " + gen("a", max_tokens=4)
        s += "\nWhy? " + gen("b", max_tokens=4)

    compiled = row.compile()
    rows = [{"q": str(index)} for index in range(COUNT)]

    def by_hand() -> None:
        backend = FakeBackend(answer)
        waiting = []
        for index in range(COUNT):
            branch = backend.new_branch()
            branch.extend(f"Question: {index}\nAnswer: ")
            branch.generate(GREEDY)
            branch.extend("\nWhy? ")
            waiting.append(branch.generate(GREEDY))
            branch.release()
        for generation in waiting:
            generation.result()

    through = cpu_seconds(lambda: compiled.run_batch(rows, runtime=FakeBackend(answer)))
    return through / COUNT * 1e6, cpu_seconds(by_hand) / COUNT * 1e6


def fork_bytes(count: int = 10_000) -> float:
    """Bytes of Python memory a live unjoined fork with a text of its own, the fake's included."""
    measured = []

    @function
    def program(s: State) -> None:
        s += "root"
        s.text()
        gc.collect()
        tracemalloc.start()
        group = s.fork(count)
        for index, branch in enumerate(group):
            branch += f" branch {index}"
        group[count - 1].text()
        gc.collect()
        measured.append(tracemalloc.get_traced_memory()[0] / count)
        tracemalloc.stop()

    program(runtime=FakeBackend(answer))
    return float(measured[0])


def main() -> None:
    """Print the table."""
    print(f"{'µs of CPU an operation':<28}{'language':>10}{'by hand':>10}{'overhead':>10}")
    for name, program, by_hand in (
        ("static fork, text, gen, join", static, static_by_hand),
        ("stepwise fork, text, gen, read", stepwise, stepwise_by_hand),
    ):
        through, direct = overhead(program, by_hand)
        print(f"{name:<30}{through:>8.1f}{direct:>10.1f}{through - direct:>10.1f}")
    through, direct = compiled_row()
    print(f"{'compiled row of 4 nodes':<30}{through:>8.1f}{direct:>10.1f}{through - direct:>10.1f}")
    print(f"bytes a live fork, of {10_000}: {fork_bytes():.0f}")


if __name__ == "__main__":
    main()
