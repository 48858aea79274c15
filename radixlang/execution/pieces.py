"""The pieces of a prompt: texts, cells of values that come later, marks of turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from radixlang.protocol import Completion, Delta, Generation, OptionScore

if TYPE_CHECKING:
    from radixlang.errors import ProgramError
    from radixlang.sampling_params import SamplingParams

REPLACEMENT = "\ufffd"  # stands for bytes that are not a whole character


@dataclass(frozen=True, slots=True)
class Choice:
    """The outcome of a select.

    `scores` has the scorer's result for each option, and `probabilities` their softmax, so the
    chosen option has the highest. Under the default scorer a score is the log-probability of the
    whole option, and its probability is the model's, given that one of the options follows. `ties`
    are the indices that share the best score; the first of them is chosen. `details` are the
    log-probabilities of the options' tokens, for any scorer.
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
    """A value that comes later. Written only inside the run's mailbox, read by any thread.

    `posted_s` and `ended_s` are seconds of the monotonic clock, 0.0 before they are known: when
    the backend was asked, and when its answer or an error arrived. `failure` is an error of this
    generation, and `partial` its text so far; `error` may be another's.
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
        self.value: Any = None  # of the type that the program asked for
        self.error: ProgramError | None = None
        self.posted_s = 0.0
        self.ended_s = 0.0
        self.failure: BaseException | None = None
        self.params: SamplingParams | None = None
        self.partial = ""
        self.seed = 0
        self.generation: Generation | None = None
        self.completion: Completion | None = None
        # the number of broken characters before it that it completes, and its text with them
        self.completes: tuple[int, str] | None = None
        self.choice: Choice | None = None
        self.deltas: list[Delta] | None = None
        self.forced: tuple[tuple[str, bool], ...] = ()
        self.callbacks: list[Callable[[], None]] | None = None

    def resolve(self, value: object) -> None:
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
    """The mark of a turn that opens (`begins`) or closes, among a stream's pieces."""

    role: str
    begins: bool


Piece: TypeAlias = "str | Cell | TurnMark"  # a str may be a Markup


class Rewritten(str):
    """A turn's content in the chat template's form; `content` is the program's text."""

    __slots__ = ("content",)

    content: str

    def __new__(cls, shown: str, content: str) -> Rewritten:
        """`shown` in the prompt, `content` in the messages."""
        made = super().__new__(cls, shown)
        made.content = content
        return made


def piece_text(piece: Piece) -> str:
    """The text of a piece; turn marks have none."""
    if isinstance(piece, str):
        return piece
    return piece.text if isinstance(piece, Cell) else ""


def joined_text(pieces: Iterable[Piece]) -> str:
    """The pieces' text, with a completed character in place of a broken one."""
    parts: list[str] = []
    for piece in pieces:
        left = num_completed(piece)
        while left and parts:
            last = parts.pop()
            if len(last) > left:
                parts.append(last[:-left])
            left -= min(left, len(last))
        parts.append(piece_text(piece))
    return "".join(parts)


def num_completed(piece: Piece) -> int:
    """Number of broken characters before a piece that its text completes."""
    completes = getattr(piece, "completes", None)
    return completes[0] if completes is not None else 0
