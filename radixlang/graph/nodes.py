"""The graph of a program: frozen nodes in blocks, one block for each branch.

A Block is a straight line of nodes. A Fork names the blocks that start there, a Call the block of
a nested program. Values are addressed by (block, slot): the slot counts the value nodes of a
block, so merging or moving text changes no address and no random seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixlang.errors import ParameterError
from radixlang.hooks import hook
from radixlang.protocol import AdapterUse, Contrast, OptionScore
from radixlang.sampling_params import SamplingParams

if TYPE_CHECKING:
    from radixlang.constraints.specs import Constraint
    from radixlang.constraints.typed_values import Output

Scope = Literal["inline", "vanish", "isolate"]
SCOPES: tuple[Scope, ...] = ("inline", "vanish", "isolate")
OnError = Literal["cancel", "collect"]
ScorerName = Literal[
    "likelihood", "token_length_normalized", "greedy_token", "unconditional_likelihood_normalized"
]
Scorer: TypeAlias = "ScorerName | Callable[[list[OptionScore]], Sequence[float]]"


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's source."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of the value node at (block, slot), formatted with `spec` when interpolated."""

    block: int
    slot: int
    name: str = ""
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Arg:
    """An argument of the program that was not given while tracing."""

    name: str
    spec: str = ""


Part: TypeAlias = "str | Ref | Arg"
Option: TypeAlias = "str | tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the program; a Ref in it waits for another branch's value."""

    parts: tuple[Part, ...]
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RoleBegin:
    """A turn of a conversation opens."""

    role: str
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """The open turn closes."""

    role: str
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Thought:
    """A thought by its tags, the texts that open and close it; None: those of the model."""

    tags: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ThoughtBegin:
    """The opening tag of a thought, unless the prompt ends with it."""

    thought: Thought
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ThoughtEnd:
    """The closing tag of a thought."""

    thought: Thought
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Against:
    """The branch whose logits a generation is contrasted with, and how."""

    block: int
    how: Contrast


@dataclass(frozen=True, slots=True)
class Gen:
    """One generation. `overrides` are the parameters set on this node, `params` all parameters,
    checked and with defaults; `output` turns the text into a value (None: the text itself). One
    that writes a `thought` also stops at its closing tag. With `against` its tokens are chosen by
    the logits of two branches, and appended to both: the other one has a Contrasted node."""

    slot: int
    name: str | None
    params: SamplingParams
    overrides: tuple[tuple[str, object], ...] = ()
    constraint: Constraint | None = None
    output: Output | None = None
    location: Location | None = field(default=None, compare=False, repr=False)
    thought: Thought | None = None
    against: Against | None = None


@dataclass(frozen=True, slots=True)
class Contrasted:
    """Take part in the generation at `slot` of another branch, and take its tokens."""

    block: int
    slot: int
    name: str | None
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The child branch has written a thought and, at `slot`, the answer: append the answer alone,
    or (`keep`) go on where the child ended. `thought_slot` is None for a thought of no tokens."""

    child: int
    slot: int
    name: str | None
    thought_slot: int | None
    keep: bool
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Select:
    """A choice between options by their log-probabilities."""

    slot: int
    name: str | None
    options: tuple[Option, ...] | Arg
    scorer: Scorer = "likelihood"
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches start here. `prefix` is text that a pass hoisted out of all of them."""

    children: range
    on_error: OnError = "cancel"
    prefix: tuple[Part, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Join:
    """Wait for branches, and bind a value made from theirs.

    `refs[i]` is the value of child i, None where it lacks the variable. `mode`: "wait" binds
    nothing, "list" a list aligned by branch index, "text" appends the children's texts joined
    by `separator`, "reduce" binds reducer(list). `close` ends the children. `missing` "raise"
    makes a failed child an error of the join.
    """

    slot: int
    name: str | None
    children: range
    refs: tuple[Ref | None, ...] = ()
    mode: Literal["wait", "list", "text", "reduce"] = "list"
    separator: str = ""
    reducer: Callable[[list[object]], object] | None = None
    close: bool = True
    missing: Literal["none", "raise"] = "none"
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Adopt:
    """The branch goes on where the child branch ended."""

    child: int
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """A nested program. "inline": its text stays. "vanish": it sees the prompt, and its text is
    dropped. "isolate": it starts from an empty prompt."""

    child: int
    program: str
    scope: Scope
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Adapt:
    """What follows is computed with an adapter; `use` of None is the run's own default."""

    use: AdapterUse | None
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dynamic:
    """Python looked at a generated value here; what follows was not known before."""

    reason: str
    location: Location | None = field(default=None, compare=False, repr=False)


Node: TypeAlias = (
    "Text | RoleBegin | RoleEnd | ThoughtBegin | ThoughtEnd | Gen | Contrasted | Answer | Select "
    "| Fork | Join | Adopt | Call | Adapt | Dynamic"
)


class Block:
    """The nodes of one branch, in order. `index` is its place among the children of its fork.

    `kind` is "root", "fork" or "call"; `ordinal` counts the forks and calls of the parent.
    """

    __slots__ = ("dirty", "flushed", "id", "index", "kind", "nodes", "num_slots", "num_splits",
                 "ordinal", "parent")  # fmt: skip

    def __init__(
        self, id: int, parent: Block | None = None, kind: str = "root", ordinal: int = 0,
        index: int = 0,
    ) -> None:  # fmt: skip
        self.id = id
        self.parent = parent
        self.kind = kind
        self.ordinal = ordinal
        self.index = index
        self.nodes: list[Node] = []
        self.num_slots = 0
        self.num_splits = 0
        self.flushed = 0
        self.dirty = False

    @property
    def path(self) -> tuple[int, ...]:
        """Fork indices from the root block; calls add nothing."""
        steps: list[int] = []
        block: Block | None = self
        while block is not None:
            if block.kind == "fork":
                steps.append(block.index)
            block = block.parent
        return tuple(reversed(steps))

    @property
    def address(self) -> str:
        """The key of the block's seeds: every fork and call on the path from the root."""
        steps: list[str] = []
        block: Block | None = self
        while block is not None:
            if block.parent is not None:
                steps.append(f"{block.kind[0]}{block.ordinal}.{block.index}")
            block = block.parent
        return "/".join(reversed(steps))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        return self.address == other.address and self.nodes == other.nodes

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Block({self.id}, path={self.path}, nodes={self.nodes!r})"


@dataclass(frozen=True, slots=True)
class Graph:
    """A program's blocks; blocks[0] is the root and blocks[i].id == i.

    Two graphs are equal when their nodes are, whatever the source locations.
    """

    name: str = field(compare=False)
    blocks: Sequence[Block]

    @property
    def root(self) -> Block:
        """The block of the program itself."""
        return self.blocks[0]

    @property
    def is_static(self) -> bool:
        """Whether the whole flow is known: no Dynamic boundary anywhere."""
        return self.first_dynamic() is None

    def first_dynamic(self) -> Dynamic | None:
        """The first place where Python had to look at a generated value."""
        return next((node for _, node in self.walk() if isinstance(node, Dynamic)), None)

    def walk(self) -> Iterator[tuple[Block, Node]]:
        """Every node, children in the place of their Fork or Call (depth first)."""
        stack: list[tuple[Block, int]] = [(self.root, 0)]
        while stack:
            block, index = stack.pop()
            if index == len(block.nodes):
                continue
            node = block.nodes[index]
            stack.append((block, index + 1))
            yield block, node
            if isinstance(node, Fork):
                stack.extend((self.blocks[child], 0) for child in reversed(node.children))
            elif isinstance(node, Call):
                stack.append((self.blocks[node.child], 0))

    def arguments(self) -> tuple[str, ...]:
        """Names of the arguments left open, in order of first use."""
        found: dict[str, None] = {}
        for _, node in self.walk():
            for part in node_parts(node):
                if isinstance(part, Arg):
                    found[part.name] = None
        return tuple(found)

    def explain(self, tokenizer: object = None, **options: Any) -> Any:  # an Explanation, above
        """Predict tokens by edge, shared against unique; see `radixlang.explain.dry_run`."""
        return hook("explain_graph")(self, tokenizer, **options)

    def show(self) -> str:
        """The graph as an indented text tree."""
        from radixlang.graph.drawing import graph_to_text

        return graph_to_text(self)

    def to_svg(self) -> str:
        """The graph as a standalone SVG."""
        from radixlang.graph.drawing import graph_to_svg

        return graph_to_svg(self)

    def to_json(self) -> str:
        """The graph as JSON."""
        from radixlang.graph.graph_json import graph_to_json

        return graph_to_json(self)

    def __repr__(self) -> str:
        number = sum(len(block.nodes) for block in self.blocks)
        is_open = self.arguments()
        opened = f", open: {', '.join(is_open)}" if is_open else ""
        return f"<graph of {self.name}: {number:,} nodes in {len(self.blocks):,} blocks{opened}>"

    def _repr_html_(self) -> str:
        from radixlang.graph.drawing import graph_to_cell

        return graph_to_cell(self)


def node_parts(node: Node) -> Iterator[Part]:
    """The text parts of a node, Refs and Args among them."""
    if isinstance(node, Text):
        yield from node.parts
    elif isinstance(node, Fork):
        yield from node.prefix
    elif isinstance(node, Select):
        if isinstance(node.options, Arg):
            yield node.options
            return
        for option in node.options:
            if isinstance(option, str):
                yield option
            else:
                yield from option


def copy_block(block: Block) -> Block:
    """A shallow copy with its own list of nodes; `parent` still points at the original's."""
    copy = Block(block.id, block.parent, block.kind, block.ordinal, block.index)
    copy.nodes = list(block.nodes)
    copy.num_slots, copy.num_splits = block.num_slots, block.num_splits
    copy.flushed = len(copy.nodes)
    return copy


def relinked(name: str, blocks: Sequence[Block]) -> Graph:
    """A Graph whose blocks point at each other instead of at the originals."""
    for block in blocks:
        if block.parent is not None:
            block.parent = blocks[block.parent.id]
    return Graph(name, tuple(blocks))


def check_scope(scope: str) -> None:
    """Raise a ParameterError unless scope is one of SCOPES."""
    if scope not in SCOPES:
        raise ParameterError(f"scope must be one of {', '.join(SCOPES)}, got {scope!r}")
