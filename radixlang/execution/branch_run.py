"""Streams: a Stream executes one block of the graph on one branch of the backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from radixlang.execution.pieces import (
    Piece,
    Rewritten,
    TurnMark,
    joined_text,
    piece_text,
)
from radixlang.graph.nodes import Block
from radixlang.protocol import AdapterUse, Branch, Message

if TYPE_CHECKING:
    from radixlang.errors import ProgramError


class Stream:
    """One block being executed on one branch.

    `piece_ends[i]` is the number of pieces after node i was done. `failure` is an error that began
    here; `error` may also be that of the whole run, and `was_stopped` says that it ended work of
    this branch.
    """

    __slots__ = ("adapter", "base", "base_length", "block", "branch", "domain", "ended",
                 "error", "failure", "formatted", "held", "join_at", "outstanding", "piece_ends",
                 "pieces", "pos", "queued", "roles", "waiting", "was_stopped",
                 "watchers")  # fmt: skip

    def __init__(self, block: Block, branch: Branch | None, base: Stream | None = None) -> None:
        self.block = block
        self.branch = branch
        self.base = base
        self.base_length = len(base.pieces) if base is not None else 0
        self.domain: Stream | None = base.domain if base is not None else None
        self.roles: tuple[str, ...] = base.roles if base is not None else ()
        self.adapter: AdapterUse | None = base.adapter if base is not None else None
        self.pieces: list[Piece] = []
        # the content of an open turn that the template will write in another form at its end
        self.held: list[str] | None = None
        self.piece_ends: list[int] = []
        self.pos = 0
        self.outstanding = 0
        self.join_at = 0
        self.waiting = False
        self.queued = False
        self.ended = False
        self.error: ProgramError | None = None
        self.failure: ProgramError | None = None
        self.was_stopped = False
        self.watchers: list[Stream] | None = None
        self.formatted: dict[int, list[str] | BaseException] = {}  # by id of a node's parts

    @property
    def is_complete(self) -> bool:
        """Whether everything given so far has run."""
        return self.error is not None or (
            self.pos >= self.block.flushed and not self.outstanding and not self.waiting
        )

    def pass_node(self) -> None:
        """Record that the node at `pos` is done."""
        self.piece_ends.append(len(self.pieces))
        self.pos += 1

    def stop(self, error: ProgramError) -> None:
        """Fail with an error that may have begun elsewhere."""
        if self.error is None:
            self.was_stopped = not self.is_complete
            self.error = error

    def history(self) -> Iterator[Piece]:
        """Every piece of the prompt, from the root of the tree to here."""
        chain: list[tuple[Stream, int]] = [(self, len(self.pieces))]
        stream = self
        while stream.base is not None:
            chain.append((stream.base, stream.base_length))
            stream = stream.base
        for part, length in reversed(chain):
            yield from part.pieces[:length]
        yield from self.held or ()

    def own_text(self) -> str:
        """Text since this branch began."""
        return joined_text([*self.pieces, *(self.held or ())])

    def text(self) -> str:
        """The whole prompt as text, markup of turns included."""
        return joined_text(self.history())

    def messages(self) -> list[Message]:
        """The turns of the conversation; contents byte for byte. An open turn is the last."""
        found: list[Message] = []
        role: str | None = None
        content: list[Piece] = []
        for piece in self.history():
            if isinstance(piece, TurnMark):
                if role is not None:
                    found.append(Message(role, joined_text(content)))
                role, content = (piece.role if piece.begins else None), []
            elif role is not None:
                content.append(piece.content if isinstance(piece, Rewritten) else piece)
        if role is not None:
            found.append(Message(role, joined_text(content)))
        return found

    def tail(self, length: int = 120) -> str:
        """The last characters of the prompt."""
        found = ""
        stream: Stream | None = self
        limit = len(self.pieces)
        while stream is not None and len(found) < length:
            for piece in reversed(stream.pieces[:limit]):
                found = piece_text(piece) + found
                if len(found) >= length:
                    break
            limit, stream = stream.base_length, stream.base
        return found[-length:]
