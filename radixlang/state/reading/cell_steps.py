"""Following one value while it is generated: steps yield text, or a condition to wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TypeAlias, TypeVar

from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block
from radixlang.protocol import Delta

T = TypeVar("T")
# yields what is read, or a condition to wait for
Steps: TypeAlias = "Generator[T | Callable[[], bool], None, None]"


def cell_steps(run: Run, block: Block, cell: Cell) -> Steps[str]:
    """The steps of following one cell to its end."""
    position = 0
    yield lambda: cell.done or cell.deltas is not None
    deltas: list[Delta] = cell.deltas if cell.deltas is not None else []
    while True:
        while position < len(deltas):
            text = deltas[position].text
            position += 1
            if text:
                yield text
        if cell.done and position >= len(deltas):
            break
        seen = position
        yield lambda: len(deltas) > seen or cell.done  # noqa: B023
    run.outcome(block, cell)
    if not deltas and cell.text:
        yield cell.text


def follow_cell(run: Run, block: Block, cell: Cell) -> Iterator[str]:
    """Pieces of a cell's text as they arrive."""
    run.follow(cell)
    return read_steps(run, cell_steps(run, block, cell))


def follow_cell_async(run: Run, block: Block, cell: Cell) -> AsyncIterator[str]:
    """Pieces of a cell's text as they arrive, on an event loop."""
    run.follow(cell)
    return read_steps_async(run, cell_steps(run, block, cell))


def read_steps(run: Run, steps: Steps[T]) -> Iterator[T]:
    """The text that the steps yield; waits for their conditions."""
    for step in steps:
        if callable(step):
            run.readers.wait(step)
        else:
            yield step


async def read_steps_async(run: Run, steps: Steps[T]) -> AsyncIterator[T]:
    """Like `read_steps`, on an event loop."""
    for step in steps:
        if callable(step):
            await run.readers.wait_async(step)
        else:
            yield step
