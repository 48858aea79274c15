"""Standpoints from which a state is read: its program's function, or its stream's reader."""

from __future__ import annotations

from typing import TypeAlias

from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block, Ref


class Inside:
    """The program's own function: its reads are recorded in the graph, and flush it."""

    def look(self, run: Run, block: Block, ref: Ref) -> Cell:
        """The cell of a value; flushes the nodes up to it."""
        return run.look(block, ref)

    def boundary(self, run: Run, block: Block, reason: str) -> None:
        """Record in the graph that the function looks at a value here."""
        run.boundary(block, reason)

    def await_program(self, run: Run) -> None:
        """Do nothing: the function itself reads, or has returned."""


class Outside:
    """A reader on another thread. It never flushes nodes to the executor: how a turn opens depends
    on when they are flushed, so only the program may do that."""

    def look(self, run: Run, block: Block, ref: Ref) -> Cell:
        """The cell of a value, which the program may not have reached yet."""
        return run.loop.cell(ref.block, ref.slot, ref.name)

    def boundary(self, run: Run, block: Block, reason: str) -> None:
        """Do nothing: values that the reader looks at are no boundary of the program."""

    def await_program(self, run: Run) -> None:
        """Wait until the program's function has returned."""
        run.readers.wait(lambda: run.program_ended)


Standpoint: TypeAlias = Inside | Outside
INSIDE, OUTSIDE = Inside(), Outside()
