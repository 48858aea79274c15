"""Next uses, which a static graph knows: which generation reads a prompt again, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixlang.graph.nodes import (
    Adopt,
    Answer,
    Block,
    Call,
    Contrasted,
    Fork,
    Gen,
    Graph,
    Join,
    Node,
    Select,
)

NodePosition = tuple[int, int]  # (block, index of a node); index -1 is the beginning of the block


@dataclass(frozen=True, slots=True)
class FutureUse:
    """The uses of a prompt after a node on its branch.

    `num_generations` counts the generations and selections that will read this prompt again, on
    this branch and below it. `next_in` is the distance to the first of them, counting those of
    branches that are waited for: 1 is the next one of the program (None: there is none).
    """

    num_generations: int
    next_in: int | None


NO_USE = FutureUse(0, None)


def future_uses(graph: Graph) -> dict[NodePosition, FutureUse]:
    """The later uses of the prompt at every node. Exact for a static graph.

    Goes backwards over each block. An adopted child continues as its parent, so the uses after the
    Adopt are those of the child's end.
    """
    found: dict[NodePosition, FutureUse] = {}
    ends: dict[int, FutureUse] = {}
    stack = [(graph.root, len(graph.root.nodes) - 1, NO_USE)]
    while stack:
        block, index, after = stack.pop()
        while index >= 0:
            node = block.nodes[index]
            missing = [child for child in _below(node) if (child, -1) not in found]
            if missing:
                stack.append((block, index, after))
                stack += [_end_of(graph.blocks[child], ends) for child in missing]
                break
            found[(block.id, index)] = after
            if isinstance(node, Adopt) or (isinstance(node, Answer) and node.keep):
                ends[node.child] = after
                after = NO_USE
            else:
                after = _before(node, after, found)
            index -= 1
        else:
            found[(block.id, -1)] = after
    return found


def _end_of(block: Block, ends: Mapping[int, FutureUse]) -> tuple[Block, int, FutureUse]:
    return block, len(block.nodes) - 1, ends.get(block.id, NO_USE)


def _below(node: Node) -> tuple[int, ...]:
    """Blocks that must be known before this node is."""
    if isinstance(node, (Fork, Join)):
        return tuple(node.children)
    return (node.child,) if isinstance(node, Call) else ()


def _before(node: Node, after: FutureUse, found: Mapping[NodePosition, FutureUse]) -> FutureUse:
    if isinstance(node, (Gen, Contrasted, Select)):
        return FutureUse(after.num_generations + 1, 1)
    begins = [found[(child, -1)] for child in _below(node)]
    if isinstance(node, Join):
        waits = max((use.num_generations for use in begins), default=0)
        later = None if after.next_in is None else after.next_in + waits
        return FutureUse(after.num_generations, later)
    if isinstance(node, Call) and node.scope == "isolate":
        begins = []
    steps = [use.next_in for use in (after, *begins) if use.next_in is not None]
    count = after.num_generations + sum(use.num_generations for use in begins)
    return FutureUse(count, min(steps, default=None))
