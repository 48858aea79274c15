"""A trace as text for a terminal: a line for each step, branches where they fork and join.

Colours: grey is cached prompt, blue computed prompt, green sampled, orange forced by a
constraint or chosen by a select, red a failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TypeAlias

from radixlang.protocol import sum_usage
from radixlang.views.spans import odds, printable
from radixlang.views.trace import (
    Failure,
    Lane,
    Merge,
    Nested,
    Span,
    Split,
    Trace,
    Turn,
    Value,
    Words,
)

_ANSI = {"cached": "\x1b[90m", "computed": "\x1b[34m", "sampled": "\x1b[32m",
         "forced": "\x1b[33m", "error": "\x1b[31m", "note": "\x1b[2m"}  # fmt: skip
_RESET = "\x1b[0m"
_MOST = 1200  # characters of a text; a longer one is shortened to its beginning and end
_HEAD, _TAIL = 700, 200

Painted: TypeAlias = "list[tuple[str, str]]"  # (what it is, text)
Line: TypeAlias = "tuple[str, Painted]"  # margin, text after it


def trace_to_text(trace: Trace, *, color: bool | None = None) -> str:
    """The tree of a run as text.

    Args:
        color: with colours or not; None: if stdout is a terminal.

    Control characters are escaped, so that a model's text cannot act on the terminal.
    """
    colored = sys.stdout.isatty() if color is None else color
    lines = [printable(summary(trace))]
    lines += [_drawn(margin, painted, colored) for margin, painted in _lines(trace)]
    return "\n".join(lines)


def summary(trace: Trace) -> str:
    """One line: branches, tokens by origin, seed."""
    total = sum_usage(trace.usages())
    number = len(trace.lanes)
    text = (
        f"{trace.name}: {number:,} branch{'es' * (number != 1)}, "
        f"{total.num_prompt_tokens:,} prompt tokens ({total.num_cached_tokens:,} cached, "
        f"{total.num_computed_tokens:,} computed), {total.num_generated_tokens:,} generated "
        f"({total.num_forced_tokens:,} forced), seed {trace.seed}"
    )
    return text if trace.status == "done" else f"{text}, {trace.status}"


def _drawn(margin: str, painted: Painted, colored: bool) -> str:
    texts = [(kind, printable(text)) for kind, text in painted]
    if not colored:
        return (margin + "".join(text for _, text in texts)).rstrip()
    return margin + "".join(
        f"{_ANSI[kind]}{text}{_RESET}" if kind in _ANSI and text else text for kind, text in texts
    )


def _lines(trace: Trace) -> Iterator[Line]:
    """Every line of the trunk; a stack of iterators stands for the branches that are open."""
    stack: list[Iterator[Line | tuple[str, Lane]]] = [
        _lane_lines(trace.trunk, "│ ", _unplaced(trace))
    ]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
        elif isinstance(found[1], Lane):
            stack.append(_lane_lines(found[1], found[0]))
        else:
            yield found[0], found[1]


def _unplaced(trace: Trace) -> Failure | None:
    """The run's failure, if it began in no branch."""
    return trace.failure if trace.failed_in is None else None


def _lane_lines(
    lane: Lane, margin: str, unplaced: Failure | None = None
) -> Iterator[Line | tuple[str, Lane]]:  # fmt: skip
    role = ""
    for step in lane.steps:
        if isinstance(step, Turn):
            role = f"[{step.role}] " if step.begins else ""
        elif isinstance(step, (Words, Value)):
            for row in _rows_of(step):
                yield margin, [("note", role), *row]
                role = ""
        else:
            yield from _branch_lines(step, margin)
    failure = lane.failure or unplaced
    if failure is not None:
        yield margin, _failed(failure)
    if lane.unreached and lane.status in ("failed", "stopped"):
        yield margin, [("note", f"not reached: {', '.join(lane.unreached)}")]


def _rows_of(step: Words | Value) -> Iterator[Painted]:
    if isinstance(step, Value):
        yield from _value_rows(step)
    elif not step.is_markup:
        yield from _text_rows(step.spans)


def _branch_lines(
    step: Split | Merge | Nested, margin: str
) -> Iterator[Line | tuple[str, Lane]]:  # fmt: skip
    match step:
        case Split():
            yield from _split_lines(step, margin)
        case Merge():
            yield margin, [("note", f"{step.how} ({', '.join(step.labels)})")]
        case Nested():
            yield margin[:-2] + "├─ ", [("", f"{step.program} ({step.scope})")]
            yield margin + " │ ", step.lane


def _value_rows(value: Value) -> Iterator[Painted]:
    name = value.name or value.kind
    head: Painted = [("note", f"{name} = ")]
    rows = list(_text_rows(value.spans)) or [[]]
    more = odds(value.choice).replace("\n", ", ") if value.choice is not None else ""
    notes: Painted = [("note", f"  ({more})")] if more else []
    if value.status in ("running", "stopped"):
        notes.append(("note", f"  [{value.status}]"))
    last = len(rows) - 1
    for index, row in enumerate(rows):
        lead = head if index == 0 else [("", " " * (len(name) + 3))]
        yield [*lead, *row, *(notes if index == last else [])]
    if value.failure is not None:
        yield _failed(value.failure)


def _split_lines(split: Split, margin: str) -> Iterator[Line | tuple[str, Lane]]:
    rail = margin[:-2]
    for lane in split.branches:
        title: Painted = [("", lane.label)]
        if lane.status != "done":
            title.append(("error" if lane.status == "failed" else "note", f" [{lane.status}]"))
        yield f"{rail}├─ ", title
        yield f"{rail}│  │ ", lane
    if split.joined is not None:
        yield f"{rail}├◂ ", [("note", split.joined.how)]


def _text_rows(spans: list[Span]) -> list[Painted]:
    """The rows of a text, without blank ones at its ends."""
    rows: list[Painted] = [[]]
    for span in _folded(spans):
        first, *others = span.text.split("\n")
        rows[-1].append((span.kind, first))
        rows += [[(span.kind, other)] for other in others]
    while rows and not _row_text(rows[-1]).strip():
        rows.pop()
    while rows and not _row_text(rows[0]).strip():
        rows.pop(0)
    return rows


def _row_text(row: Painted) -> str:
    return "".join(text for _, text in row)


def _folded(spans: list[Span]) -> list[Span]:
    """The spans, with the middle of a long text replaced by its number of characters."""
    length = sum(len(span.text) for span in spans)
    if length <= _MOST:
        return spans
    kept, at = [], 0
    for span in spans:
        head = span.text[: max(0, _HEAD - at)]
        tail = span.text[max(0, length - _TAIL - at) :]
        if head:
            kept.append(Span(span.kind, head))
        if at <= _HEAD < at + len(span.text):
            kept.append(Span("cached", f"\n… {length - _HEAD - _TAIL:,} more characters …\n"))
        if tail:
            kept.append(Span(span.kind, tail))
        at += len(span.text)
    return kept


def _failed(failure: Failure) -> Painted:
    return [("error", f"{failure.kind}: {' '.join(failure.message.split())}")]
