"""Many rows through one program; a row that fails fails alone.

A row whose program needs no generated value holds no thread while it runs; only rows whose
Python waits for a value hold a worker.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from radixlang.default_runtime import runtime_or_default
from radixlang.errors import ParameterError, ProgramError, program_error
from radixlang.execution.handlers.node_context import node_seed
from radixlang.progress import row_bar
from radixlang.protocol import Backend
from radixlang.records.batch_threads import BatchThreads
from radixlang.records.made_by import made_by
from radixlang.records.result import Result
from radixlang.records.result_file import ResultFile
from radixlang.records.rows import as_rows
from radixlang.state.listeners import tell_end
from radixlang.state.state import State

# Options of a run are checked by `check_options`, by name; Program's own signatures type them.


class Launchable(Protocol):
    """What a batch runs: a program, or a compiled one."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the arguments that a row gives."""
        ...

    def launch(
        self, row: Mapping[str, object], finish: Callable[[State], None], **options: Any
    ) -> State:
        """Start a run and return at once; `finish(state)` is called once, when it has ended."""
        ...

    def check_options(self, options: Mapping[str, object], whose: str = "a run") -> None:
        """Raise a ParameterError for an option that no run knows."""
        ...


def run_batch(
    program: Launchable,
    rows: Iterable[Mapping[str, object]],
    *,
    progress: bool | None = None,
    **options: Any,
) -> list[Result]:
    """One Result for each row, in the order of the rows; see `as_completed` for the options.

    `progress` None shows a bar on a terminal, for batches that take more than a moment.
    """
    held = as_rows(rows, program.parameters)
    results: list[Result | None] = [None] * len(held)
    with row_bar(len(held), wanted=progress) as bar:
        for result in as_completed(program, held, **options):
            results[result.index] = result
            bar.update(1)
    return [result for result in results if result is not None]


def as_completed(
    program: Launchable,
    rows: Iterable[Mapping[str, object]],
    *,
    max_workers: int = 32,
    max_in_flight: int = 2048,
    save_to: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    runtime: Backend | None = None,
    **options: Any,
) -> Iterator[Result]:
    """Results as rows finish.

    Args:
        rows: the arguments of each row, which are never changed; or a table, see `as_rows`.
        max_workers: threads for programs that wait for values in Python.
        max_in_flight: rows that run at the same time.
        save_to: a JSONL file. Each result is appended when its row finishes; rows that the file
            already holds without an error are not run again, and their results have no state.
        seed: row i runs with a seed made from this and i.
        options: as for `run`: runtime, timeout, sampling defaults.

    Raises:
        ParameterError: an option that `run` does not know, or a file with other content: results
            of other rows, of another program, model or option, or no results at all.
    """
    held = as_rows(rows, program.parameters)
    backend = runtime_or_default(runtime)
    _check_counts(max_workers=max_workers, max_in_flight=max_in_flight)
    program.check_options(options, "run_batch")
    log = None
    if save_to is not None:
        made = made_by(program, backend.model_name, {"seed": seed, **options})
        log = ResultFile(Path(save_to), made)
    done = log.load(held) if log is not None else {}
    yield from done.values()
    todo = [index for index in range(len(held)) if index not in done]
    job = _Batch(program, held, backend, seed, options, max_in_flight)
    workers = BatchThreads(max_workers)
    try:
        for result in job.results(workers, todo):
            if log is not None:
                log.append(result)
            yield result
    finally:
        job.stop()
        workers.close()


def _check_counts(**counts: object) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ParameterError(f"{name} must be an integer of at least 1, got {count!r}")


class _Batch:
    def __init__(
        self, program: Launchable, rows: list[dict[str, object]], backend: Backend,
        seed: int | None, options: Mapping[str, object], max_in_flight: int,
    ) -> None:  # fmt: skip
        self.program, self.rows, self.backend = program, rows, backend
        self.seed, self.options = seed, options
        self.stopped = False
        self.live: dict[int, State] = {}
        self._finished: queue.SimpleQueue[tuple[int, State | ProgramError]] = queue.SimpleQueue()
        # A queue of tokens: an interrupt can leave a Semaphore locked, but not a queue.
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(min(max_in_flight, len(rows))):
            self._room.put(None)

    def results(self, workers: BatchThreads, todo: list[int]) -> Iterator[Result]:
        """Start all rows and yield the results of those that finish."""
        for index in todo:
            workers.submit(partial(self._start, index))
        for _ in todo:
            index, outcome = self._finished.get()
            self.live.pop(index, None)
            self._room.put(None)
            if not isinstance(outcome, ProgramError):
                tell_end(outcome)
            yield _result(index, self.rows[index], outcome)

    def stop(self) -> None:
        """End rows that still run: their results will not be read."""
        self.stopped = True
        for state in list(self.live.values()):
            state.cancel()
        for _ in range(len(self.rows) + 1):
            self._room.put(None)

    def _start(self, index: int) -> None:
        self._room.get()
        if self.stopped:
            return
        row = self.rows[index]
        try:
            state = self.program.launch(
                row, self._finish(index), seed=self._row_seed(index), runtime=self.backend,
                **self.options,
            )  # fmt: skip
        except Exception as error:
            self._finished.put((index, program_error(error)))
            return
        if not state._run().finished:
            self.live[index] = state
            if self.stopped:
                state.cancel()

    def _row_seed(self, index: int) -> int | None:
        return None if self.seed is None else node_seed(self.seed, "row", index)

    def _finish(self, index: int) -> Callable[[State], None]:
        def finish(state: State) -> None:
            self._finished.put((index, state))

        return finish


def _result(index: int, row: Mapping[str, object], state: State | ProgramError) -> Result:
    if isinstance(state, ProgramError):
        return Result(index, row, error=state)
    error = state.error
    if error is not None:
        return Result(index, row, error=error, run_state=state)
    try:
        return Result(index, row, state.values(), state.text(), None, state)
    except Exception as failure:
        return Result(index, row, error=program_error(failure), run_state=state)
