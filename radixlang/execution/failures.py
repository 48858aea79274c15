"""Errors of a run, with the place in the program where they began."""

from __future__ import annotations

from radixlang.errors import ProgramError, StateClosedError, place_of
from radixlang.execution.branch_run import Stream
from radixlang.graph.nodes import Node


def placed_error(
    name: str, model_name: str, error: BaseException, stream: Stream | None, node: Node | None
) -> ProgramError:
    """An error as the ProgramError that names its line, its branch and the end of its prompt."""
    if isinstance(error, ProgramError):
        return error
    at = None if node is None else node.location
    location = place_of(error) if at is None else str(at)
    branch = stream.block.path if stream is not None else ()
    tail = stream.tail() if stream is not None else ""
    lines = [f"{type(error).__name__}: {error}"]
    place = f"at {location}" if location else f"in program {name!r}"
    lines.append(f"  {place}, branch {list(branch)} on {model_name}")
    if tail:
        lines.append(f"  the prompt ends: {tail!r}")
    wrapped = ProgramError("\n".join(lines), location=location, branch=branch, prompt_tail=tail)
    wrapped.__cause__ = error
    return wrapped


def closed_error(name: str, why: str) -> StateClosedError:
    """The error of appending to a state that has finished."""
    return StateClosedError(
        f"state of program {name!r} {why}; nothing can be appended to it: append before "
        "that, or to a state that goes on"
    )
