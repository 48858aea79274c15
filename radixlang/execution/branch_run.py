"""What executes: a Stream walks a block on a Branch; a Cell holds one value of the run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixlang.execution.split_characters import joined_text
from radixlang.graph.nodes import Block
from radixlang.protocol import Branch, Completion, Delta, Generation, Message, OptionScore

if TYPE_CHECKING:
    from radixlang.errors import ProgramError
    from radixlang.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a select.

    `scores` are the scorer's, one an option, and `probabilities` their softmax, so the chosen
    option has the highest. Under the default scorer a score is the log-probability of the whole
    option, and its probability is the model's, given that one of the options follows. `ties` are
    the indices that share the best score; the first of them is chosen. `details` are the
    log-probabilities of the options' tokens, whatever the scorer makes of them.
    """

    options: tuple[str, ...]
    index: int
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    ties: tuple[int, ...]
    details: tuple[OptionScore, ...] = ()

    @property
    def text(self) -> str:
        """The chosen option."""
        return self.options[self.index]

    @property
    def is_tie(self) -> bool:
        """Whether more than one option has the best score."""
        return len(self.ties) > 1


class Cell:
    """A value that is there later. Written by the run's actor only, read by anyone.

    `posted_s` and `ended_s` are seconds of the monotonic clock, 0.0 before they are known: when
    the backend was asked, and when its answer or an error came. `failure` is an error of this
    very generation, and `partial` what it had written by then; `error` may be another's.
    """

    __slots__ = ("block", "callbacks", "choice", "completes", "completion", "deltas", "done",
                 "ended_s", "error", "failure", "forced", "generation", "is_stopping", "name",
                 "params", "partial", "posted_s", "seed", "seen", "value")  # fmt: skip

    def __init__(self, block: int, name: str | None = None) -> None:
        self.block = block
        self.name = name
        self.done = False
        self.seen = False
        self.is_stopping = False  # the generation is to end, or not to begin
        self.value: Any = None
        self.error: ProgramError | None = None
        self.posted_s = 0.0
        self.ended_s = 0.0
        self.failure: BaseException | None = None
        self.params: SamplingParams | None = None
        self.partial = ""
        self.seed = 0
        self.generation: Generation | None = None
        self.completion: Completion | None = None
        # broken characters before it that it completes, and its text with them whole
        self.completes: tuple[int, str] | None = None
        self.choice: Choice | None = None
        self.deltas: list[Delta] | None = None
        self.forced: tuple[tuple[str, bool], ...] = ()
        self.callbacks: list[Callable[[], None]] | None = None

    def resolve(self, value: Any) -> None:
        """Set the value and call back."""
        self.value = value
        self._end()

    def fail(self, error: ProgramError) -> None:
        """Set the error, unless there is a value already."""
        if not self.done:
            self.error = error
            self._end()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once the cell is done; at once if it is."""
        if self.done:
            callback()
        elif self.callbacks is None:
            self.callbacks = [callback]
        else:
            self.callbacks.append(callback)

    def _end(self) -> None:
        self.done = True
        self.ended_s = time.monotonic()
        callbacks, self.callbacks = self.callbacks, None
        for callback in callbacks or ():
            callback()

    @property
    def text(self) -> str:
        """Text this cell put into the prompt; empty until it is there."""
        if self.completes is not None:
            return self.completes[1]
        if self.completion is not None:
            return self.completion.text
        return self.choice.text if self.choice is not None else ""


@dataclass(frozen=True, slots=True)
class TurnMark:
    """Marks in a stream's pieces where a turn opens (`begins`) or closes."""

    role: str
    begins: bool


Piece = Any  # str | Markup | Cell | TurnMark


class Rewritten(str):
    """A turn's content as the chat template writes it; `content` is what the program wrote."""

    __slots__ = ("content",)

    content: str

    def __new__(cls, shown: str, content: str) -> Rewritten:
        """`shown` in the prompt, `content` in the messages."""
        made = super().__new__(cls, shown)
        made.content = content
        return made


class Stream:
    """One block being executed on one branch.

    `piece_ends[i]` is the number of pieces there were when node i was done. `failure` is an error
    that began here; `error` may also be that of the whole run, and `was_stopped` says that it
    ended work of this branch.
    """

    __slots__ = ("adopted", "base", "base_length", "block", "branch", "domain", "ended",
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
        self.adopted = False
        self.error: ProgramError | None = None
        self.failure: ProgramError | None = None
        self.was_stopped = False
        self.watchers: list[Stream] | None = None
        self.formatted: dict[int, list[str] | BaseException] = {}  # by id of a node's parts

    @property
    def is_complete(self) -> bool:
        """Everything given so far has run."""
        return self.error is not None or (
            self.pos >= self.block.flushed and not self.outstanding and not self.waiting
        )

    def pass_node(self) -> None:
        """The node at `pos` is done."""
        self.piece_ends.append(len(self.pieces))
        self.pos += 1

    def stop(self, error: ProgramError) -> None:
        """Take an error that may have begun elsewhere."""
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


def piece_text(piece: Piece) -> str:
    """The text of a piece; turn marks have none."""
    if isinstance(piece, str):
        return piece
    return piece.text if isinstance(piece, Cell) else ""
