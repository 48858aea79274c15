"""What crosses between the driver and its workers. Plain data, pickled by Ray."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from radixlang.protocol import Delta, Message
from radixlang.sampling_params import SamplingParams

Piece: TypeAlias = str | tuple[int, ...]  # text, Markup, or token ids
EncodeRun: TypeAlias = Callable[..., list[int]]


def id_bytes(token_ids: Sequence[int]) -> bytes:
    """Token ids as int32."""
    return array("i", token_ids).tobytes()


def ids_of(data: bytes) -> tuple[int, ...]:
    """Token ids of int32."""
    return tuple(array("i", data))


@dataclass(frozen=True, slots=True)
class BranchContent:
    """All that a branch is: any worker can go on from it.

    Attributes:
        ids: the tokens that do not change any more, int32, as bytes.
        run: what came after them, tokenised as one run when its tokens are needed.
    """

    namespace: str = ""
    ids: bytes = b""
    run: tuple[Piece, ...] = ()

    def extended(self, piece: Piece) -> BranchContent:
        """The content with a piece after it."""
        return replace(self, run=(*self.run, piece))

    def path(self, encode_run: EncodeRun) -> bytes:
        """The token ids of all of it, int32, as bytes."""
        ids: list[int] = []
        texts: list[str] = []
        at_start = not self.ids
        for piece in self.run:
            if isinstance(piece, str):
                texts.append(piece)
                continue
            if texts:
                ids += encode_run(texts, at_start=at_start)
            ids += piece
            texts, at_start = [], False
        if texts or at_start:
            ids += encode_run(texts, at_start=at_start)
        return self.ids + id_bytes(ids)


@dataclass(frozen=True, slots=True)
class Generating:
    """A generation; `constraint` is its specification, which the worker compiles."""

    params: SamplingParams
    constraint: object = None
    is_followed: bool = False
    is_stopping: bool = False


@dataclass(frozen=True, slots=True)
class Scoring:
    """A scoring of options."""

    options: tuple[str, ...] | tuple[tuple[int, ...], ...]
    num_top: int = 0


@dataclass(frozen=True, slots=True)
class ReadingNext:
    """A reading of the next token's distribution."""

    among: tuple[str | int, ...] | None = None
    top: int | None = None


Question: TypeAlias = Generating | Scoring | ReadingNext
# namespace, token ids (int32) and how many are left, None if all are held: a change of a tree
Change: TypeAlias = tuple[str, bytes, "int | None"]


@dataclass(frozen=True, slots=True)
class Heard:
    """Deltas of a generation that goes on."""

    deltas: tuple[Delta, ...]


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The end of a request.

    Attributes:
        value: a Completion, a list of OptionScores or a NextToken; None if there is an error.
        deltas: those that were not heard before.
        run: what a generation leaves of text after its tokens.
        has_failed: whether the branch has failed, so that all later requests of it fail as well.
        changes: of the worker's tree since its last answer.
    """

    value: object
    error: BaseException | None
    deltas: tuple[Delta, ...]
    run: tuple[Piece, ...]
    has_failed: bool
    changes: tuple[Change, ...]


class WorkerTokenizer(Protocol):
    """What the driver uses of the runtime's tokenizer, which it is sent."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text at the start of a prompt, BOS excluded."""
        ...

    def encode_run(self, pieces: Sequence[str], *, at_start: bool) -> list[int]:
        """Token ids of the pieces between two generations, tokenised as one run."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        ...

    def render_chat(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The chat template applied to the messages."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """What a worker tells once its model is loaded."""

    model_name: str
    context_length: int
    num_token_ids: int
    tokenizer: WorkerTokenizer
    think_tags: tuple[str, str] | None
    node: str
    pid: int
