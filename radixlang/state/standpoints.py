"""From where a state is read: by its program's function, or by the reader of its stream."""

from __future__ import annotations

from typing import TypeAlias

from radixlang.execution.pieces import Cell
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block, Ref


class Inside:
    """The program's own function: what it looks at is part of its graph, and runs at once."""

    def look(self, run: Run, block: Block, ref: Ref) -> Cell:
        """The cell of a value, which the run goes for now."""
        return run.look(block, ref)

    def boundary(self, run: Run, block: Block, reason: str) -> None:
        """Record that the function looks at something here."""
        run.boundary(block, reason)

    def await_program(self, run: Run) -> None:
        """Nothing: the function itself asks, or has returned."""


class Outside:
    """A reader on another thread. It only looks: when nodes are handed to the executor decides
    what a turn opens with, so that is the program's to say."""

    def look(self, run: Run, block: Block, ref: Ref) -> Cell:
        """The cell of a value, whenever the program comes to it."""
        return run.loop.cell(ref.block, ref.slot, ref.name)

    def boundary(self, run: Run, block: Block, reason: str) -> None:
        """Nothing: what the reader looks at is no part of the program."""

    def await_program(self, run: Run) -> None:
        """Wait until the program's function has returned."""
        run.readers.wait(lambda: run.program_ended)


Standpoint: TypeAlias = Inside | Outside
INSIDE, OUTSIDE = Inside(), Outside()
