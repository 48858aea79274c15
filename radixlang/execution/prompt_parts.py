"""Text on its way into a branch: parts resolved to strings, strings appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from radixlang.errors import ParameterError
from radixlang.execution.branch_run import Stream
from radixlang.graph.nodes import Arg, Part, Ref
from radixlang.protocol import Branch

if TYPE_CHECKING:
    from radixlang.execution.run import Run


def emit(stream: Stream, text: str) -> None:
    """Append text to the branch and to the record of the prompt."""
    branch_of(stream).extend(text)
    stream.pieces.append(text)


def branch_of(stream: Stream) -> Branch:
    """The stream's branch, which it has for as long as it runs."""
    assert stream.branch is not None, "a stream without a branch was driven"
    return stream.branch


def resolve_parts(run: Run, stream: Stream, parts: tuple[Part, ...]) -> list[str] | None:
    """Parts as texts, or None after arranging to be woken when a missing value is there."""
    for part in parts:
        if isinstance(part, Ref):
            cell = run.cell(part.block, part.slot, part.name)
            if not cell.done:
                cell.on_done(run.wake_by(stream))
                return None
            if cell.error is not None:
                raise cell.error
    return [part if isinstance(part, str) else _format(run, part) for part in parts]


def _format(run: Run, part: Ref | Arg) -> str:
    if isinstance(part, Arg):
        return format(argument(run, part.name), part.spec)
    return format(run.cell(part.block, part.slot).value, part.spec)


def argument(run: Run, name: str) -> Any:
    """The value of an open argument of the graph."""
    try:
        return run.args[name]
    except KeyError:
        raise ParameterError(f"program {run.name!r} needs the argument {name!r}") from None
