"""The workloads of the speed table, as forests of calls.

A call continues its parent's tokens (prompt and generation) with a suffix and generates a fixed
number of tokens greedily, end tokens ignored. Every peer gets the same token ids. Suffixes are
slices of real text in the repository (its own pages and sources), each at another offset, so
that nothing is shared but what a workload says is shared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Call:
    """One prompt: the parent's tokens, then `suffix`, then `num_tokens` to generate."""

    parent: int | None
    suffix: tuple[int, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls in an order in which parents come first.

    With a schema every call writes one JSON value that is valid under it and ends there.
    """

    name: str
    about: str
    calls: tuple[Call, ...]
    schema: dict[str, Any] | None = None

    def levels(self) -> list[list[int]]:
        """Indices of the calls by depth: the calls of a level can run side by side."""
        depths: list[int] = []
        levels: list[list[int]] = []
        for index, call in enumerate(self.calls):
            depth = 0 if call.parent is None else depths[call.parent] + 1
            depths.append(depth)
            while len(levels) <= depth:
                levels.append([])
            levels[depth].append(index)
        return levels

    @property
    def num_generated(self) -> int:
        """Tokens that a run generates."""
        return sum(call.num_tokens for call in self.calls)


class Text:
    """An endless supply of tokens of real text; no two slices start alike."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = list(token_ids)
        self._at = 0

    def take(self, count: int) -> tuple[int, ...]:
        """The next `count` tokens."""
        if self._at + count > len(self._ids):
            self._ids = self._ids[7:] + self._ids[:7]
            self._at = 0
        taken = self._ids[self._at : self._at + count]
        self._at += count
        return tuple(taken)


def single_stream(text: Text) -> Workload:
    """W1."""
    return Workload("W1", "single stream, 512 + 128", (Call(None, text.take(512), 128),))


def fork(text: Text) -> Workload:
    """W2."""
    calls = [Call(None, text.take(1024), 0)]
    calls += [Call(0, text.take(16), 32) for _ in range(32)]
    return Workload("W2", "fork, 1024 shared, 32 × (16 + 32)", tuple(calls))


def few_shot(text: Text) -> Workload:
    """W3."""
    calls = [Call(None, text.take(768), 0)]
    calls += [Call(0, text.take(64), 1) for _ in range(64)]
    return Workload("W3", "few-shot, 768 shared, 64 × (64 + 1)", tuple(calls))


def multi_turn(text: Text) -> Workload:
    """W4."""
    calls: list[Call] = []
    for turn in range(4):
        for chat in range(8):
            parent = None if turn == 0 else (turn - 1) * 8 + chat
            calls.append(Call(parent, text.take(128), 64))
    return Workload("W4", "chat, 8 × 4 turns of 128 + 64", tuple(calls))


def json_objects(text: Text) -> Workload:
    """W5. Prompts differ, so that no answer is another's."""
    calls = tuple(Call(None, text.take(256), 96) for _ in range(16))
    about = "JSON, 16 × 256, a schema of five fields"
    return Workload("W5", about, calls, schema={
        "type": "object",
        "properties": {
            "title": {"type": "string", "minLength": 8, "maxLength": 24},
            "kind": {"enum": ["guide", "reference", "note"]},
            "stars": {"type": "integer", "minimum": 1, "maximum": 5},
            "draft": {"type": "boolean"},
            "author": {"type": "string", "minLength": 4, "maxLength": 16},
        },
        "required": ["title", "kind", "stars", "draft", "author"],
        "additionalProperties": False,
    })  # fmt: skip


def tree_of_thought(text: Text) -> Workload:
    """W6."""
    calls = [Call(None, text.take(512), 0)]
    parents = [0]
    for width in (2, 4, 8, 16):
        level = range(len(calls), len(calls) + width)
        calls += [Call(parents[i * len(parents) // width], text.take(16), 64) for i in range(width)]
        parents = list(level)
    return Workload("W6", "tree of thought, 2+4+8+16 calls of 16 + 64 over 512", tuple(calls))


def self_consistency(text: Text) -> Workload:
    """W7."""
    calls = [Call(None, text.take(512), 0)]
    calls += [Call(0, text.take(2), 64) for _ in range(32)]
    return Workload("W7", "self-consistency, 512 shared, 32 × (2 + 64)", tuple(calls))


def nothing_shared(text: Text) -> Workload:
    """W8."""
    calls = tuple(Call(None, text.take(256), 64) for _ in range(16))
    return Workload("W8", "nothing shared, 16 × (256 + 64)", calls)


WORKLOADS: dict[str, Callable[[Text], Workload]] = {
    "W1": single_stream,
    "W2": fork,
    "W3": few_shot,
    "W4": multi_turn,
    "W5": json_objects,
    "W6": tree_of_thought,
    "W7": self_consistency,
    "W8": nothing_shared,
}


def read_text(path: str) -> str:
    """The text of a file; of JSON lines, their strings one after another."""
    text = Path(path).read_text(encoding="utf-8")
    if not path.endswith(".jsonl"):
        return text
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return "\n\n".join("\n".join(v for v in row.values() if isinstance(v, str)) for row in rows)


def corpus() -> str:
    """Real text: the repository's own pages and sources."""
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("radixlang/*.py")])
    return "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
