"""A compressed trie of token sequences that counts shared and new tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class _Edge:
    __slots__ = ("children", "tokens")

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.children: dict[int, _Edge] = {}


class TokenTrie:
    """Token sequences by their shared prefixes; `num_tokens` counts each distinct prefix
    position once."""

    def __init__(self) -> None:
        self._root = _Edge(())
        self.num_tokens = 0

    def match(self, tokens: Sequence[int]) -> int:
        """Length of the longest prefix of tokens that has been inserted."""
        edge, position = self._root, 0
        while position < len(tokens):
            below = edge.children.get(tokens[position])
            if below is None:
                break
            same = _common(below.tokens, tokens, position)
            position += same
            if same < len(below.tokens):
                break
            edge = below
        return position

    def insert(self, tokens: Sequence[int]) -> int:
        """Add a sequence; returns how many of its tokens were there already."""
        edge, position = self._root, 0
        while position < len(tokens):
            below = edge.children.get(tokens[position])
            if below is None:
                edge.children[tokens[position]] = _Edge(tuple(tokens[position:]))
                break
            same = _common(below.tokens, tokens, position)
            position += same
            if same < len(below.tokens):
                below = _split(edge, below, same)
            edge = below
        self.num_tokens += len(tokens) - position
        return position

    def path_lengths(self) -> Iterator[int]:
        """Tokens from the root to each leaf."""
        stack = [(edge, 0) for edge in self._root.children.values()]
        while stack:
            edge, start = stack.pop()
            end = start + len(edge.tokens)
            stack += [(child, end) for child in edge.children.values()]
            if not edge.children:
                yield end

    def draw(self, decode: Callable[[Sequence[int]], str], max_text: int = 40) -> str:
        """A drawing with one line for each edge: its number of tokens and their text."""
        lines = ["●"]
        stack = _rows(self._root, "")
        while stack:
            prefix, mark, edge = stack.pop()
            text = repr(decode(edge.tokens))[1:-1]
            shown = text if len(text) <= max_text else text[: max_text - 1] + "…"
            lines.append(f"{prefix}{mark}[{len(edge.tokens):,}]  {shown}")
            stack += _rows(edge, prefix + ("   " if mark.startswith("└") else "│  "))
        return "\n".join(lines)


def _rows(edge: _Edge, prefix: str) -> list[tuple[str, str, _Edge]]:
    """Children of an edge as rows of a drawing, last first."""
    children = list(edge.children.values())
    return [
        (prefix, "└─ " if child is children[-1] else "├─ ", child) for child in reversed(children)
    ]


def _common(edge: tuple[int, ...], tokens: Sequence[int], start: int) -> int:
    limit = min(len(edge), len(tokens) - start)
    if tuple(tokens[start : start + limit]) == edge[:limit]:
        return limit
    return next(index for index in range(limit) if edge[index] != tokens[start + index])


def _split(parent: _Edge, edge: _Edge, length: int) -> _Edge:
    upper = _Edge(edge.tokens[:length])
    edge.tokens = edge.tokens[length:]
    upper.children[edge.tokens[0]] = edge
    parent.children[upper.tokens[0]] = upper
    return upper
