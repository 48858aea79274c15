"""The tokens of a run as a tree: what was given, what was forced, what was sampled.

Tokens come from the backend with every generation, so nothing is tokenised again. Paths that begin
with the same tokens, of the same kind and weights, share their nodes. Text after the last
generation of a branch was read by no generation and has no tokens here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, overload

from radixlang.errors import ParameterError
from radixlang.rollouts.rows import PackedTree, Rollout

Kind: TypeAlias = Literal["given", "forced", "sampled"]


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a path. What is compared decides whether paths share it."""

    token_id: int
    kind: Kind = "given"
    weights_version: int = 0
    adapter: str = ""
    logprob: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Path:
    """A path that ends with a generation, and where it was generated."""

    tokens: tuple[Token, ...]
    branch: tuple[int, ...]
    name: str | None


@dataclass(frozen=True, slots=True)
class TokenNode:
    """Tokens of one kind without a branching between them.

    Attributes:
        index, parent: places in `TokenTree.nodes`; parent is None for a root.
        start: position of its first token in the path.
        logprobs: of sampled tokens, None if they were not asked for, and for given ones.
        weights_version: of the weights that sampled or forced it; 0 for given tokens.
        adapter: the adapter that did, "" without one.
    """

    index: int
    parent: int | None
    start: int
    token_ids: tuple[int, ...]
    kind: Kind
    logprobs: tuple[float, ...] | None
    weights_version: int
    adapter: str


class _Link:
    """A token in the trie that is being built."""

    __slots__ = ("below", "ends", "token")

    def __init__(self, token: Token) -> None:
        self.token = token
        self.below: dict[Token, _Link] = {}
        self.ends = False


class TokenTree:
    """The tree of a finished run, see `State.tree`.

    `nodes` have parents before children; `rollouts` are its paths, one for each branch that
    generated something last.
    """

    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths
        self.nodes: tuple[TokenNode, ...] = tuple(_nodes_of(paths))
        self.rollouts: tuple[Rollout, ...] = tuple(map(_rollout, paths))

    @property
    def num_tokens(self) -> int:
        """Tokens of all nodes: each shared one counts once."""
        return sum(len(node.token_ids) for node in self.nodes)

    def __repr__(self) -> str:
        total = sum(len(row.token_ids) for row in self.rollouts)
        return (
            f"<tree of {len(self.rollouts)} rollouts: {self.num_tokens:,} tokens in "
            f"{len(self.nodes):,} nodes, {total:,} if none were shared>"
        )

    @overload
    def flatten(self, prefixes: Literal["repeated"] = "repeated") -> list[Rollout]: ...
    @overload
    def flatten(self, prefixes: Literal["once"]) -> PackedTree: ...
    def flatten(
        self, prefixes: Literal["repeated", "once"] = "repeated"
    ) -> list[Rollout] | PackedTree:
        """The tree as a trainer takes it.

        Args:
            prefixes: "repeated": a row for each rollout, with all of its tokens. "once": one packed
                sequence with every token once, for a trainer with a tree attention mask.
        """
        if prefixes == "repeated":
            return list(self.rollouts)
        if prefixes == "once":
            return _packed(self.nodes, self._paths)
        raise ParameterError(f'prefixes must be "repeated" or "once", got {prefixes!r}')


def _nodes_of(paths: list[Path]) -> Iterator[TokenNode]:
    root = _Link(Token(-1))
    for path in paths:
        at = root
        for token in path.tokens:
            at = at.below.setdefault(token, _Link(token))
        at.ends = True
    stack: list[tuple[_Link, int | None, int]] = [(first, None, 0) for first in root.below.values()]
    stack.reverse()
    index = 0
    while stack:
        link, parent, start = stack.pop()
        chain = [link.token]
        while len(link.below) == 1 and not link.ends:
            (following,) = link.below.values()
            if not _continues(following.token, link.token):
                break
            link = following
            chain.append(link.token)
        yield _node(index, parent, start, chain)
        stack += [(each, index, start + len(chain)) for each in reversed(link.below.values())]
        index += 1


def _continues(token: Token, before: Token) -> bool:
    return (token.kind, token.weights_version, token.adapter) == (
        before.kind, before.weights_version, before.adapter
    )  # fmt: skip


def _node(index: int, parent: int | None, start: int, chain: list[Token]) -> TokenNode:
    first = chain[0]
    known = tuple(token.logprob for token in chain if token.logprob is not None)
    return TokenNode(
        index, parent, start, tuple(token.token_id for token in chain), first.kind,
        known if len(known) == len(chain) else None, first.weights_version, first.adapter,
    )  # fmt: skip


def _rollout(path: Path) -> Rollout:
    tokens = path.tokens
    first = next((i for i, token in enumerate(tokens) if token.kind == "sampled"), len(tokens))
    completion = tokens[first:]
    sampled = [token for token in completion if token.kind == "sampled"]
    has_logprobs = all(token.logprob is not None for token in sampled)
    return Rollout(
        prompt_ids=tuple(token.token_id for token in tokens[:first]),
        completion_ids=tuple(token.token_id for token in completion),
        logprobs=tuple(map(_logprob, completion)) if has_logprobs else None,
        mask=tuple(int(token.kind == "sampled") for token in completion),
        branch=path.branch,
        name=path.name,
        weights_version=min((token.weights_version for token in sampled), default=0),
        adapter=tokens[-1].adapter if tokens else "",
    )


def _logprob(token: Token) -> float:
    return token.logprob if token.kind == "sampled" and token.logprob is not None else 0.0


def _packed(nodes: tuple[TokenNode, ...], paths: list[Path]) -> PackedTree:
    ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    logprobs: list[float] = []
    mask: list[int] = []
    last: list[int] = []  # of each node
    has_logprobs = True
    for node in nodes:
        before = -1 if node.parent is None else last[node.parent]
        num, first = len(node.token_ids), len(ids)
        ids += node.token_ids
        positions += range(node.start, node.start + num)
        parents += [before, *range(first, first + num - 1)]
        is_sampled = node.kind == "sampled"
        mask += [int(is_sampled)] * num
        has_logprobs &= node.logprobs is not None or not is_sampled
        logprobs += node.logprobs if is_sampled and node.logprobs is not None else [0.0] * num
        last.append(len(ids) - 1)
    ends = tuple(_ends(nodes, paths, last))
    return PackedTree(tuple(ids), tuple(positions), tuple(parents),
                      tuple(logprobs) if has_logprobs else None, tuple(mask), ends)  # fmt: skip


def _ends(nodes: tuple[TokenNode, ...], paths: list[Path], last: list[int]) -> Iterator[int]:
    """The packed index at which each path ends; a path ends where a node does."""
    below: dict[int | None, list[TokenNode]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    for path in paths:
        at: TokenNode | None = None
        place = 0
        while place < len(path.tokens):
            token = path.tokens[place]
            at = next(
                node
                for node in below[None if at is None else at.index]
                if node.token_ids[0] == token.token_id and _is_of(node, token)
            )
            place += len(at.token_ids)
        assert at is not None
        yield last[at.index]


def _is_of(node: TokenNode, token: Token) -> bool:
    return (node.kind, node.weights_version, node.adapter) == (
        token.kind, token.weights_version, token.adapter
    )  # fmt: skip
