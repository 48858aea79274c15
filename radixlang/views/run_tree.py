"""A run as a tree: where it forked, and which tokens were cached, computed, forced, sampled.

Colours: grey is cached prompt, blue computed prompt, green sampled, orange forced by a
constraint or chosen by a select.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from radixlang.execution.branch_run import Cell, Choice, Stream, piece_text
from radixlang.execution.run import Run
from radixlang.program.state_values import Reading

_ANSI = {"cached": "\x1b[90m", "computed": "\x1b[34m", "sampled": "\x1b[32m",
         "forced": "\x1b[33m", "error": "\x1b[31m"}  # fmt: skip
_CSS = {"cached": "#888", "computed": "#1f5fbf", "sampled": "#1a7f37", "forced": "#b35900",
        "error": "#c00"}  # fmt: skip
_RESET = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of text and where its tokens came from; `note` is shown on hover."""

    kind: str
    text: str
    note: str = ""


def spans_of(run: Run, stream: Stream) -> list[Span]:
    """The stretches of one branch, since it began.

    The prompt text before a generation is split by that generation's own count of cached
    tokens, in proportion to its characters: tokens of a prompt are not kept one by one.
    """
    base = sum(len(piece_text(piece)) for piece in _before(stream))
    spans: list[Span] = []
    pending = ""
    for piece in stream.pieces:
        if not isinstance(piece, Cell):
            pending += piece_text(piece)
            continue
        spans += _prompt_spans(pending, base, piece)
        made = _cell_spans(piece, run.backend)
        spans += made
        base += len(pending) + sum(len(span.text) for span in made)
        pending = ""
    if pending:
        spans.append(Span("computed", pending))
    if stream.error is not None:
        spans.append(Span("error", f" [{type(stream.error.__cause__).__name__}]"))
    return spans


def _before(stream: Stream) -> Iterator[object]:
    if stream.base is not None:
        yield from _before(stream.base)
        yield from stream.base.pieces[: stream.base_length]


def _prompt_spans(text: str, base: int, cell: Cell) -> list[Span]:
    if not text:
        return []
    if cell.completion is None:
        return [Span("computed", text)]
    usage = cell.completion.usage
    share = usage.num_cached_tokens / max(1, usage.num_prompt_tokens)
    cut = min(len(text), max(0, round(share * (base + len(text))) - base))
    parts = [Span("cached", text[:cut]), Span("computed", text[cut:])]
    return [part for part in parts if part.text]


def _cell_spans(cell: Cell, backend: Any) -> list[Span]:
    if cell.choice is not None:
        return [Span("forced", cell.text, _odds(cell.choice))] if cell.text else []
    if cell.forced:
        return [Span("forced" if forced else "sampled", text) for text, forced in cell.forced]
    from radixlang.views.page import token_spans

    plain = [Span("sampled", cell.text)] if cell.text else []
    return token_spans(cell, backend) or plain


def _odds(choice: Choice, most: int = 12) -> str:
    """The likeliest options of a select with their probabilities."""
    ranked = sorted(zip(choice.probabilities, choice.options, strict=True), reverse=True)
    return "\n".join(f"{probability:.1%} {option!r}" for probability, option in ranked[:most])


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch as it is drawn: depth in the tree, label, spans."""

    depth: int
    label: str
    spans: list[Span]
    cells: tuple[Cell, ...] = ()


def branches_of(run: Run) -> list[Branch]:
    """Every branch of a run, parents before children."""
    children: dict[int, list[int]] = {}
    for block in run.blocks:
        if block.parent is not None:
            children.setdefault(block.parent.id, []).append(block.id)
    found: list[Branch] = []
    stack = [(0, 0)]
    while stack:
        block_id, depth = stack.pop()
        block = run.blocks[block_id]
        stream = run.streams.get(block_id)
        label = "root" if block.parent is None else f"{block.kind} {block.index}"
        spans = spans_of(run, stream) if stream is not None else []
        pieces = stream.pieces if stream is not None else []
        cells = tuple(piece for piece in pieces if isinstance(piece, Cell))
        found.append(Branch(depth, label, spans, cells))
        stack += [(child, depth + 1) for child in reversed(children.get(block_id, []))]
    return found


def summary(run: Run) -> str:
    """One line: branches, tokens by origin, seed."""
    usages = [cell.completion.usage for cell in tuple(run.cells.values()) if cell.completion]
    prompt = sum(usage.num_prompt_tokens for usage in usages)
    cached = sum(usage.num_cached_tokens for usage in usages)
    forced = sum(usage.num_forced_tokens for usage in usages)
    made = sum(usage.num_generated_tokens for usage in usages)
    return (
        f"{run.name}: {len(run.streams)} branches, {prompt} prompt tokens ({cached} cached, "
        f"{prompt - cached} computed), {made} generated ({forced} forced), seed {run.seed}"
    )


def run_to_text(run: Run, *, color: bool | None = None) -> str:
    """The run's tree for a terminal; colours where the output is one, or as asked."""
    colored = sys.stdout.isatty() if color is None else color
    lines = [summary(run)]
    for branch, (title, margin) in _margins(branches_of(run)):
        if title:
            lines.append(f"{title}{branch.label}")
        text = "".join(_painted(span, colored) for span in branch.spans)
        lines += [f"{margin}{row}".rstrip() for row in text.removesuffix("\n").split("\n") if text]
    return "\n".join(lines)


def _margins(branches: list[Branch]) -> Iterator[tuple[Branch, tuple[str, str]]]:
    """Each branch with the lines left of its title ("" for the root's) and of its text."""
    following = [branch.depth for branch in branches[1:]] + [0]
    closed = _are_last(branches)
    left: list[str] = []  # of the branch at each depth
    for branch, is_last, next_depth in zip(branches, closed, following, strict=True):
        del left[branch.depth :]
        above = left[-1] if left else ""
        below = above + ("   " if is_last else "│  ") if branch.depth else ""
        title = above + ("└─ " if is_last else "├─ ") if branch.depth else ""
        left.append(below)
        yield branch, (title, below + ("│ " if next_depth > branch.depth else "  "))


def _are_last(branches: list[Branch]) -> list[bool]:
    """Whether each branch is the last of its siblings."""
    found, open_depths = [], set[int]()
    for branch in reversed(branches):
        found.append(branch.depth not in open_depths)
        open_depths = {depth for depth in open_depths if depth < branch.depth} | {branch.depth}
    return found[::-1]


def _painted(span: Span, colored: bool) -> str:
    if not colored:
        return span.text
    start = _ANSI[span.kind]
    return "\n".join(f"{start}{row}{_RESET}" for row in span.text.split("\n"))


def run_to_html(source: Run | Reading) -> str:
    """The tree of a run, or of a state's run, for a notebook; each branch folds away."""
    run = source if isinstance(source, Run) else source._run()
    branches = branches_of(run)
    parts: list[str] = []
    for index, branch in enumerate(branches):
        body = "".join(
            f'<span style="color:{_CSS[span.kind]}" title="{escape(span.note or span.kind)}">'
            f"{escape(span.text)}</span>"
            for span in branch.spans
        )
        parts.append(
            f"<details open style='margin-left:1em'><summary>{escape(branch.label)}</summary>"
            f"<pre style='white-space:pre-wrap;margin:0'>{body}</pre>"
        )
        depth_after = branches[index + 1].depth if index + 1 < len(branches) else 0
        parts.append("</details>" * max(0, branch.depth - depth_after + 1))
    legend = " ".join(f'<span style="color:{_CSS[kind]}">{kind}</span>' for kind in _CSS)
    return f"<div><small>{escape(summary(run))} · {legend}</small>{''.join(parts)}</div>"
