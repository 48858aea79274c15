"""Recording: appended items become nodes in blocks; values that are not known yet are marked.

A Placeholder stands for a generated value or an open argument. In an f-string it becomes a
marked string, which the recorder splits into Refs again. Marks carry a random nonce of this
recorder, so that data that happens to contain such characters stays data.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType

from radixlang.errors import ParameterError
from radixlang.graph.nodes import Arg, Block, Graph, Location, Node, Part, Ref
from radixlang.protocol import Markup

_OPEN, _CLOSE = "\ue000", "\ue001"
PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_inside: dict[str, bool] = {}
_locations: dict[tuple[str, int], Location] = {}


def caller_location() -> Location:
    """File and line of the nearest frame outside this package (an interned object)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        inside = _inside.get(file)
        if inside is None:
            inside = _inside[file] = os.path.abspath(file).startswith(PACKAGE_FOLDER)
        if not inside:
            key = (file, frame.f_lineno)
            found = _locations.get(key)
            if found is None:
                found = _locations[key] = Location(*key)
            return found
        frame = frame.f_back
    return Location("<unknown>", 0)


class Recorder:
    """The blocks of one program while they are recorded: a trace, or a live run."""

    def __init__(self, name: str, blocks: Sequence[Block] | None = None) -> None:
        self.name = name
        self.blocks: list[Block] = [Block(0)] if blocks is None else list(blocks)
        self.at: Location | None = None
        self._news: deque[Block] = deque()
        self._lock = threading.Lock()
        self._marks: list[Ref | Arg] = []
        self._nonce = ""
        self._pattern: re.Pattern[str] | None = None

    @property
    def graph(self) -> Graph:
        """The graph as far as it has been recorded."""
        return Graph(self.name, tuple(self.blocks))

    def location(self) -> Location:
        """The program's current line: a template sets `at`, for Python it is on the stack."""
        return self.at or caller_location()

    def record(self, block: Block, node: Node) -> None:
        """Append a node to a block, and remember that the block has news."""
        block.nodes.append(node)
        if not block.dirty:
            block.dirty = True
            self._news.append(block)

    @property
    def has_news(self) -> bool:
        """Whether nodes have been recorded since `take_news`."""
        return bool(self._news)

    def take_news(self) -> Iterator[tuple[Block, int]]:
        """Blocks with nodes that were not handed over yet, each with its current length."""
        while self._news:
            block = self._news.popleft()
            block.dirty = False
            length = len(block.nodes)
            if length > block.flushed:
                yield block, length

    def new_blocks(self, parent: Block, kind: str, count: int) -> list[Block]:
        """New blocks below parent with consecutive ids: one fork, or one call."""
        with self._lock:
            first, ordinal = len(self.blocks), parent.num_splits
            parent.num_splits = ordinal + 1
            fresh = [Block(first + i, parent, kind, ordinal, i) for i in range(count)]
            self.blocks.extend(fresh)
        return fresh

    def mark(self, part: Ref | Arg) -> str:
        """A string that `split` turns into this part again."""
        if self._pattern is None:
            self._nonce = secrets.token_hex(8)
            self._pattern = re.compile(f"{_OPEN}{self._nonce}:([0-9]+){_CLOSE}")
        self._marks.append(part)
        return f"{_OPEN}{self._nonce}:{len(self._marks) - 1}{_CLOSE}"

    def split(self, text: str) -> tuple[Part, ...]:
        """The parts of a text: plain strings, and a Ref or Arg for every mark in it."""
        if self._pattern is None or self._nonce not in text:
            return (text,)
        wrap = Markup if isinstance(text, Markup) else str
        pieces = self._pattern.split(text)
        parts: list[Part] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                parts.append(self._marks[int(piece)])
            elif piece:
                parts.append(wrap(piece))
        if any(isinstance(part, str) and self._nonce in part for part in parts):
            raise ParameterError(
                "text was cut in the middle of a value that is not known yet; "
                "append the whole f-string and cut the value once it is there"
            )
        return tuple(parts)
