"""Appends text to a branch: resolves parts to strings, and appends these."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from radixlang.errors import ParameterError
from radixlang.execution.branch_run import Stream
from radixlang.execution.handlers.node_context import NodeContext
from radixlang.execution.pieces import REPLACEMENT, Rewritten
from radixlang.graph.nodes import Arg, Part, Ref
from radixlang.protocol import Backend, Branch
from radixlang.user_code import is_users_value, offload

Pairs: TypeAlias = list[str | tuple[object, str]]  # texts, and values with their format specs


def emit(stream: Stream, text: str) -> None:
    """Append text to the branch and to the stream's pieces, or hold it until its turn ends."""
    if stream.held is not None:
        stream.held.append(text)
        return
    branch_of(stream).extend(str(text) if isinstance(text, Rewritten) else text)
    stream.pieces.append(text)


def write_held(stream: Stream) -> None:
    """Write held text unchanged, because something other than text follows in the turn."""
    held, stream.held = stream.held, None
    for text in held or ():
        emit(stream, text)


def extend_generated(branch: Branch, backend: Backend, token_ids: Sequence[int], text: str) -> None:
    """Append a generation that was made elsewhere: its tokens, and the end of its text that they do
    not have, which a stop inside a token or the closing of a constraint has left.

    Tokens of a healed generation are what `num_healed` tells: the end of the text before it must
    not be on the branch.
    """
    branch.extend(token_ids)
    shown = backend.decode(token_ids)
    end = shown[num_healed(backend, token_ids, text) :]
    if text.startswith(end) and len(text) > len(end):
        branch.extend(text[len(end) :])


def num_healed(backend: Backend, token_ids: Sequence[int], text: str) -> int:
    """Characters before a generation's text that its first token has too, since it was healed."""
    shown = backend.decode(token_ids)
    if not text or text.startswith(shown) or shown.startswith(text) or REPLACEMENT in shown:
        return 0
    for begin in range(1, len(backend.decode(token_ids[:1])) + 1):
        end = shown[begin:]
        if end and (end.startswith(text) or text.startswith(end)):
            return begin
    return 0


def branch_of(stream: Stream) -> Branch:
    """The stream's branch, which it has as long as it runs."""
    assert stream.branch is not None, "a stream without a branch was driven"
    return stream.branch


def resolve_parts(run: NodeContext, stream: Stream, parts: tuple[Part, ...]) -> list[str] | None:
    """Parts as texts; None if a value is missing, after arranging to be woken once it is there."""
    for part in parts:
        if isinstance(part, Ref):
            cell = run.loop.cell(part.block, part.slot, part.name)
            if not cell.done:
                cell.on_done(run.loop.wake_by(stream))
                return None
            if cell.error is not None:
                raise cell.error
    pairs = [part if isinstance(part, str) else (_value(run, part), part.spec) for part in parts]
    if any(not isinstance(pair, str) and is_users_value(pair[0]) for pair in pairs):
        return _by_user(run, stream, parts, pairs)
    return _formatted(pairs)


def _by_user(
    run: NodeContext, stream: Stream, parts: tuple[Part, ...], pairs: Pairs
) -> list[str] | None:
    """Texts from a user's `__format__`, called on a user thread; None until they are there."""
    if id(parts) in stream.formatted:
        found = stream.formatted.pop(id(parts))
        if isinstance(found, BaseException):
            raise found
        return found

    def made(texts: list[str], error: BaseException | None) -> None:
        stream.formatted[id(parts)] = texts if error is None else error
        run.loop.post(run.loop.wake_by(stream))

    offload(partial(_formatted, pairs), made)
    return None


def _formatted(pairs: Pairs) -> list[str]:
    return [pair if isinstance(pair, str) else format(*pair) for pair in pairs]


def _value(run: NodeContext, part: Ref | Arg) -> object:
    if isinstance(part, Arg):
        return argument(run, part.name)
    return run.loop.cell(part.block, part.slot).value


def argument(run: NodeContext, name: str) -> Any:  # of the type that the caller gave
    """The value of an open argument of the graph."""
    try:
        return run.args[name]
    except KeyError:
        raise ParameterError(f"program {run.name!r} needs the argument {name!r}") from None
