"""Tracing: a program runs without a model, and its requests are recorded as a graph."""

from __future__ import annotations

import os
import traceback
from typing import TypeAlias

from radixlang.errors import NeedsValueError
from radixlang.execution.recorder import PACKAGE_FOLDER, Recorder
from radixlang.execution.run import Run
from radixlang.graph.nodes import Block, Dynamic, Location, Node, Ref
from radixlang.state.expressions.items import Placeholder


class Tracer:
    """A program without a model: its nodes are recorded, every generated value is a Placeholder."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recorder = Recorder(name)

    def record(self, block: Block, node: Node) -> None:
        """Append a node to a block."""
        self.recorder.record(block, node)

    def read(self, ref: Ref) -> Placeholder:
        """A placeholder for the value."""
        return Placeholder(self.recorder, ref)


Host: TypeAlias = Run | Tracer  # records a state's nodes and provides its values


def is_boundary(error: BaseException) -> bool:
    """Whether the program stopped because it looked at a value, which a trace does not have.

    A TypeError that names Placeholder counts: C code such as str.join checks types.
    """
    if isinstance(error, NeedsValueError):
        return True
    return isinstance(error, TypeError) and Placeholder.__name__ in str(error)


def record_boundary(tracer: Tracer, block: Block, error: BaseException) -> None:
    """End a block with a Dynamic node, which says where and why the trace had to stop."""
    tracer.record(block, Dynamic(str(error), _location_of(error)))


def _location_of(error: BaseException) -> Location | None:
    """The deepest line of the user's own code in the error's traceback."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not os.path.abspath(frame.filename).startswith(PACKAGE_FOLDER)
    ]
    return Location(frames[-1].filename, frames[-1].lineno or 0) if frames else None
