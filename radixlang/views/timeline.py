"""Generations over time as HTML: a row for each branch, a bar for each, waiting times lighter."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from radixlang.views.trace import Lane, Trace, Value
from radixlang.views.trace_html import seconds_text

_NUM_TICKS = 4


def timeline_html(trace: Trace) -> Iterator[str]:
    """Pieces of the markup; none if nothing was generated."""
    rows = [(lane, values) for lane in trace.lanes if (values := list(lane.values()))]
    if not rows:
        return
    begin = min(value.start_s or 0.0 for _, values in rows for value in values)
    end = max(value.end_s or 0.0 for _, values in rows for value in values)
    span = max(end - begin, 1e-9)
    yield '<details class="timeline" open><summary>timeline</summary><div class="rows">'
    for lane, values in rows:
        yield f'<div class="row"><span class="who">{escape(lane.label)}</span><div class="track">'
        for value in values:
            yield _bar(lane, value, begin, span)
        yield "</div></div>"
    yield f"</div>{_axis(span)}</details>"


def _bar(lane: Lane, value: Value, begin: float, span: float) -> str:
    """A button that leads to the value; its left part is the wait for the first token."""
    start, end = (value.start_s or 0.0) - begin, (value.end_s or 0.0) - begin
    first = start if value.first_s is None else value.first_s - begin
    wait = 100 * (first - start) / max(end - start, 1e-9)
    name = escape(value.name or value.kind)
    tokens = f", {value.usage.num_generated_tokens:,} tokens" if value.usage is not None else ""
    title = f"{lane.label}: {value.name or value.kind}, {seconds_text(value.seconds)}{tokens}"
    status = "" if value.status == "done" else f", {value.status}"
    return (
        f'<button type="button" tabindex="-1" class="bar {value.kind} {value.status}" '
        f'data-to="{value.id}" title="{escape(title + status)}" '
        f'style="left:{100 * start / span:.2f}%;width:{100 * (end - start) / span:.2f}%;'
        f'--wait:{wait:.0f}%">{name}</button>'
    )


def _axis(span: float) -> str:
    ticks = (
        f'<span style="left:{100 * tick / _NUM_TICKS:.0f}%">'
        f"{seconds_text(span * tick / _NUM_TICKS)}</span>"
        for tick in range(1, _NUM_TICKS + 1)
    )
    track = f'<div class="track"><span style="left:0">0</span>{"".join(ticks)}</div>'
    return f'<div class="axis"><span class="who"></span>{track}</div>'
