"""Immutable snapshots of the tree for other threads, and their drawing as text.

The owner thread takes snapshots between steps; any thread may read the last one at any time,
without a lock and without delaying the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from radixlang.runtime.cache.node import token_ids, variants_of
from radixlang.runtime.cache.radix_tree import Namespace, RadixNode, RadixTree, Tokens


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a snapshot. `tokens` is read-only; `holders` names the leases that end here, and
    `variant` what computed its last token, "" for the model alone."""

    tokens: Tokens
    start: int
    num_leases: int
    num_hits: int
    last_use: int
    quantized: bool
    holders: tuple[str, ...]
    children: tuple[NodeView, ...]
    variant: str = ""


@dataclass(frozen=True, slots=True)
class TreeSnapshot:
    """The whole tree between two steps."""

    roots: tuple[tuple[Namespace, tuple[NodeView, ...]], ...]
    num_nodes: int
    num_cached_tokens: int
    num_protected_tokens: int
    num_pages_free: int
    num_pages_total: int
    layout_version: int


def take_snapshot(tree: RadixTree, name_of: Callable[[int], str] = str) -> TreeSnapshot:
    """Copy the tree's shape. Call it on the tree's own thread; O(number of nodes).

    `name_of` says what a variant's number stands for.
    """
    holders: dict[RadixNode, list[str]] = {}
    for lease in tree.leases:
        holders.setdefault(lease.node, []).append(lease.holder)
    order = list(tree.nodes())
    views: dict[RadixNode, NodeView] = {}
    for node in reversed(order):
        children = tuple(views.pop(child) for child in node.children.values())
        views[node] = NodeView(
            tokens=_read_only(token_ids(node.key)),
            start=node.start,
            num_leases=node.num_leases,
            num_hits=node.num_hits,
            last_use=node.last_use,
            quantized=node.quantized,
            holders=tuple(sorted(holders.get(node, ()))),
            children=children,
            variant=name_of(number) if (number := int(variants_of(node.key[-1:])[0])) else "",
        )
    return TreeSnapshot(
        roots=tuple(
            (namespace, tuple(views[child] for child in root.children.values()))
            for namespace, root in tree.roots.items()
        ),
        num_nodes=len(order),
        num_cached_tokens=tree.num_cached_tokens,
        num_protected_tokens=tree.num_protected_tokens,
        num_pages_free=tree.pool.num_free_pages,
        num_pages_total=tree.pool.num_pages,
        layout_version=tree.layout_version,
    )


def path_tokens(snapshot: TreeSnapshot) -> tuple[int, int]:
    """(tokens of all paths from root to leaf, each counted whole, number of those paths)."""
    num_tokens, num_paths = 0, 0
    stack = [view for _, children in snapshot.roots for view in children]
    while stack:
        view = stack.pop()
        stack += view.children
        if not view.children:
            num_tokens += view.start + len(view.tokens)
            num_paths += 1
    return num_tokens, num_paths


def draw(
    snapshot: TreeSnapshot,
    decode: Callable[[list[int]], str] | None = None,
    *,
    max_text: int = 40,
    max_children: int = 20,
) -> str:
    """The tree as text: a line for each node with its tokens, leases, hits and text.

    Args:
        decode: text of token ids; without it the ids themselves are shown.
        max_text: characters of text shown for a node.
        max_children: most children drawn of one node; the rest are counted.
    """
    show = _shower(decode, max_text)
    lines = [
        f"radix tree: {snapshot.num_cached_tokens:,} tokens in {snapshot.num_nodes:,} nodes, "
        f"{snapshot.num_protected_tokens:,} leased; "
        f"{snapshot.num_pages_free:,} of {snapshot.num_pages_total:,} pages free"
    ]
    for namespace, children in snapshot.roots:
        lines.append(_title(namespace))
        stack = _rows(children, "", max_children)
        while stack:
            prefix, branch, view = stack.pop()
            if isinstance(view, int):
                lines.append(f"{prefix}{branch}… {view:,} more")
                continue
            lines.append(f"{prefix}{branch}{_label(view)}  {show(view)}")
            below = prefix + ("   " if branch.startswith("└") else "│  ")
            stack += _rows(view.children, below, max_children)
    return "\n".join(lines)


Row = tuple[str, str, "NodeView | int"]


def _rows(children: tuple[NodeView, ...], prefix: str, max_children: int) -> list[Row]:
    """Rows of one node's children, last first, for a stack."""
    items: list[NodeView | int] = list(children[:max_children])
    if len(children) > max_children:
        items.append(len(children) - max_children)
    rows: list[Row] = [(prefix, "├─ ", item) for item in items]
    if rows:
        rows[-1] = (prefix, "└─ ", items[-1])
    return rows[::-1]


def _read_only(tokens: Tokens) -> Tokens:
    tokens.setflags(write=False)
    return tokens


def _title(namespace: Namespace) -> str:
    parts = [
        namespace.salt and f"salt {namespace.salt!r}",
        namespace.weights_version and f"weights version {namespace.weights_version}",
    ]
    return ", ".join(part for part in map(str, parts) if part and part != "0") or "●"


def _label(view: NodeView) -> str:
    counts = [(view.num_leases, "lease"), (view.num_hits, "hit")]
    words = [f" · {num} {word}{'s' * (num > 1)}" for num, word in counts if num]
    words += [" · 8-bit"] * view.quantized + [f" · {view.variant}"] * bool(view.variant)
    return f"[{len(view.tokens):,}{''.join(words)}]"


def _shower(decode: Callable[[list[int]], str] | None, max_text: int) -> Callable[[NodeView], str]:
    def show(view: NodeView) -> str:
        ids = view.tokens[: max_text + 1].tolist()  # a token is at least a character, mostly
        text = repr(decode(ids))[1:-1] if decode else " ".join(map(str, ids))
        cut = len(text) > max_text or len(ids) < len(view.tokens)
        return text[: max_text - 1] + "…" if cut else text

    return show
