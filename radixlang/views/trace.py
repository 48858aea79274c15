"""The trace of a run: the steps of each branch in order, forks included.

A Trace is plain data, read once from a finished or running run. Pages, notebooks, terminals and
the exporter of spans use it; none of them reads the run itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from radixlang.execution.pieces import Choice
from radixlang.graph.nodes import Scope
from radixlang.protocol import Usage
from radixlang.sampling_params import SamplingParams

SpanKind = Literal["cached", "computed", "sampled", "forced"]
Status = Literal["done", "running", "failed", "stopped"]


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text and where its tokens came from; `note` is shown on hover."""

    kind: SpanKind
    text: str
    note: str = ""


@dataclass(slots=True)
class Words:
    """A part of the prompt's text. `is_markup`: the chat template wrote it, not the program."""

    spans: list[Span]
    is_markup: bool = False
    location: str = ""

    @property
    def text(self) -> str:
        """The text of all its spans."""
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a conversation opens or closes here."""

    role: str
    begins: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """An error: its type's name, and its message without the place, which pages show anyway."""

    kind: str
    message: str


@dataclass(slots=True)
class Value:
    """A generation or a select; `slot` counts those of its branch.

    Times are seconds since the run began, None if not known; `first_s` is the time of the first
    token. `value` is the typed value, if that differs from the text.
    """

    id: str
    slot: int
    kind: Literal["gen", "select"]
    name: str | None
    status: Status
    spans: list[Span]
    location: str = ""
    start_s: float | None = None
    first_s: float | None = None
    end_s: float | None = None
    usage: Usage | None = None
    finish_reason: str = ""
    stop_reason: str | int | None = None
    value: object = None
    choice: Choice | None = None
    failure: Failure | None = None
    params: SamplingParams | None = None
    is_in_turn: bool = False  # of a conversation

    @property
    def text(self) -> str:
        """The generated or chosen text."""
        return "".join(span.text for span in self.spans)

    @property
    def seconds(self) -> float:
        """How long it took in seconds; 0.0 if that is not known."""
        if self.start_s is None or self.end_s is None:
            return 0.0
        return self.end_s - self.start_s


@dataclass(slots=True)
class Split:
    """Branches leave here. `joined` is how they are joined, if that is the next step."""

    branches: list[Lane]
    location: str = ""
    joined: Merge | None = None


@dataclass(slots=True)
class Merge:
    """Branches of an earlier fork are joined as variables or as text, or one is continued."""

    verb: str
    names: list[str]
    labels: tuple[str, ...]
    location: str = ""

    @property
    def how(self) -> str:
        """How the branches were joined, in words."""
        return f"{self.verb} as {', '.join(self.names)}" if self.names else self.verb


@dataclass(slots=True)
class Nested:
    """Another program is called; with the scope "inline" its text stays in the prompt."""

    program: str
    scope: Scope
    lane: Lane
    location: str = ""


Step: TypeAlias = "Words | Turn | Value | Split | Merge | Nested"


@dataclass(slots=True)
class Lane:
    """One branch: the trunk, a branch of a fork, or a nested program.

    `unreached` names the steps that were not begun when it ended.
    """

    id: int
    label: str
    depth: int
    path: tuple[int, ...] = ()
    status: Status = "done"
    steps: list[Step] = field(default_factory=list)
    failure: Failure | None = None
    unreached: tuple[str, ...] = ()

    def values(self) -> Iterator[Value]:
        """The generations and selects of this branch alone."""
        return (step for step in self.steps if isinstance(step, Value))

    def below(self) -> Iterator[Lane]:
        """The branches that left here, in order."""
        for step in self.steps:
            if isinstance(step, Split):
                yield from step.branches
            elif isinstance(step, Nested):
                yield step.lane

    @property
    def text(self) -> str:
        """The text of the program and the model on this branch, without the chat template's."""
        parts = (step for step in self.steps if isinstance(step, (Words, Value)))
        return "".join(s.text for s in parts if isinstance(s, Value) or not s.is_markup)


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole run. `started_at` is in seconds since the epoch; `seconds` is its duration so far.

    `failure` is the run's first error; `failed_in` the branch where it began, None if it began in
    no branch (in the program's own code, or by a timeout).
    """

    name: str
    model_name: str
    seed: int
    status: Status
    started_at: float
    seconds: float
    arguments: dict[str, object]
    trunk: Lane
    lanes: tuple[Lane, ...]
    failure: Failure | None = None
    failed_in: Lane | None = None

    def values(self) -> Iterator[tuple[Lane, Value]]:
        """Every generation and select with its branch, branches in the order they were made."""
        for lane in self.lanes:
            for value in lane.values():
                yield lane, value

    def usages(self) -> list[Usage]:
        """The usage of every finished generation."""
        return [value.usage for _, value in self.values() if value.usage is not None]
