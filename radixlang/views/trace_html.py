"""A trace as HTML: the trunk from top to bottom, each branch inside the fork where it left.

The markup folds and opens without a script. Every text is escaped here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from html import escape
from itertools import accumulate

from radixlang.constraints.typed_values import to_json
from radixlang.execution.pieces import Choice
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

_MOST_OPEN = 80  # branches open at first, in whole levels
_ENDS = (700, 200)  # characters of a long text that are shown: its beginning and its end
_ARGUMENT_ENDS = (250, 60)
_SLACK = 300  # a text that is longer than both by no more than this is shown whole
_MOST_TYPED = 1200
_ROLES = ("system", "user", "assistant", "tool")
_PEEK = 70
_MOST_OPTIONS = 8
_FINISHES = {
    "eos": "ended by itself",
    "stop": "stop",
    "length": "cut at max_tokens",
    "constraint": "constraint met",
    "stopped": "stopped by its reader",
}


def trunk_html(trace: Trace, *, notes: str = "data-p") -> Iterator[str]:
    """Pieces of the markup of the whole tree; `notes` is the attribute for notes shown on hover."""
    drawing = _Drawing(trace, notes)
    stack: list[Iterator[str | Lane]] = [drawing.steps(trace.trunk)]
    while stack:
        found = next(stack[-1], None)
        if found is None:
            stack.pop()
        elif isinstance(found, Lane):
            stack.append(drawing.branch(found))
        else:
            yield found


def failure_html(failure: Failure) -> str:
    """An error where it happened."""
    return (
        f'<div class="failure"><b>{escape(failure.kind)}</b> '
        f"<span>{escape(failure.message)}</span></div>"
    )


def seconds_text(seconds: float) -> str:
    """A time (given in seconds) as text: 1.25 s, 31 ms, 0.4 ms."""
    if seconds >= 0.1:
        return f"{seconds:,.2f} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.1f} ms"


class _Drawing:
    def __init__(self, trace: Trace, notes: str) -> None:
        self._max_depth = _open_depth(trace.lanes)
        self._notes = notes
        self._failed_in = trace.failed_in
        self._unplaced = trace.failure if trace.failed_in is None else None

    # -- branches -----------------------------------------------------------------------

    def branch(self, lane: Lane) -> Iterator[str | Lane]:
        """A branch that can be folded; its heading summarises it."""
        opened = " open" if lane.depth <= self._max_depth or lane is self._failed_in else ""
        yield f'<details class="lane {lane.status}" id="b{lane.id}"{opened}>'
        yield f"<summary>{_heading(lane)}</summary>"
        yield from self.steps(lane)
        yield "</details>"

    def steps(self, lane: Lane) -> Iterator[str | Lane]:
        """The steps of a branch, in order."""
        yield '<div class="steps">'
        for step in lane.steps:
            match step:
                case Words():
                    yield self._words(step)
                case Turn():
                    yield _turn(step)
                case Value():
                    yield self._value(step)
                case Split():
                    yield from _split(step)
                case Merge():
                    yield _merge(step)
                case Nested():
                    yield from _call(step)
        yield self._end(lane)
        yield "</div>"

    def _end(self, lane: Lane) -> str:
        """The notes of a branch that failed, was stopped or still runs."""
        parts = []
        failure = lane.failure or (self._unplaced if lane.depth == 0 else None)
        if failure is not None:
            parts.append(failure_html(failure))
        if lane.unreached and lane.status in ("failed", "stopped"):
            listed = escape(", ".join(lane.unreached))
            parts.append(f'<div class="note">not reached: {listed}</div>')
        if lane.status == "running":
            parts.append('<div class="note">still running …</div>')
        return "".join(parts)

    # -- texts and values ---------------------------------------------------------------

    def _words(self, words: Words) -> str:
        kind = "words raw" if words.is_markup else "words"
        return f'<div class="{kind}">{self._spans(words.spans)}</div>'

    def _spans(self, spans: list[Span]) -> str:
        return _folded(spans, self._span)

    def _span(self, span: Span) -> str:
        note = f' {self._notes}="{escape(span.note)}"' if span.note else ""
        return f'<span class="{span.kind}"{note}>{escape(span.text)}</span>'

    def _value(self, value: Value) -> str:
        text = self._spans(value.spans)
        body = f'<div class="words made">{text}</div>' if text else ""
        typed = "" if value.value is None else f'<div class="typed">= {_typed(value.value)}</div>'
        table = _options(value.choice) if value.choice is not None else ""
        failure = failure_html(value.failure) if value.failure is not None else ""
        return (
            f'<div class="value {value.kind} {value.status}" id="{value.id}">'
            f"<div class=head>{_facts(value)}</div>{body}{typed}{table}{failure}</div>"
        )


def long_text_html(text: str) -> str:
    """A text without colours of origin; the middle of a long one is folded."""
    drawn = _folded([Span("computed", text)], lambda span: escape(span.text), _ARGUMENT_ENDS)
    return f'<div class="words">{drawn}</div>'


def _folded(
    spans: list[Span], draw: Callable[[Span], str], ends: tuple[int, int] = _ENDS
) -> str:  # fmt: skip
    """The spans; the middle of a long text is folded."""
    length = sum(len(span.text) for span in spans)
    num_hidden = length - sum(ends)
    if num_hidden <= _SLACK:
        return "".join(map(draw, spans))
    parts = _cut(spans, ends[0], length - ends[1])
    head, middle, tail = ("".join(map(draw, part)) for part in parts)
    hidden = f"{num_hidden:,} more characters"
    return f"{head}<details class=more><summary>{hidden}</summary>{middle}</details>{tail}"


def _cut(spans: list[Span], first: int, last: int) -> tuple[list[Span], list[Span], list[Span]]:
    """Spans before, between and after two positions (in characters)."""
    parts: tuple[list[Span], list[Span], list[Span]] = ([], [], [])
    at = 0
    for span in spans:
        end = at + len(span.text)
        for part, low, high in zip(parts, (0, first, last), (first, last, end), strict=True):
            text = span.text[max(0, low - at) : max(0, high - at)]
            if text:
                part.append(Span(span.kind, text, span.note))
        at = end
    return parts


def _open_depth(lanes: tuple[Lane, ...]) -> int:
    """The deepest level that is open at first; the trunk always is."""
    num_at = Counter(lane.depth for lane in lanes)
    sums = accumulate(num_at[depth] for depth in range(len(num_at)))
    return max(0, sum(total <= _MOST_OPEN for total in sums) - 1)


def _heading(lane: Lane) -> str:
    values = list(lane.values())
    names = ", ".join(dict.fromkeys(value.name for value in values if value.name))
    parts = [f"<b>{escape(lane.label)}</b>"]
    if names:
        parts.append(f'<span class="names">{escape(names)}</span>')
    if lane.status != "done":
        parts.append(f'<span class="badge {lane.status}">{lane.status}</span>')
    usages = [value.usage for value in values if value.usage is not None]
    if usages:
        added = sum(usage.num_computed_tokens + usage.num_generated_tokens for usage in usages)
        seconds = seconds_text(sum(value.seconds for value in values))
        parts.append(
            f'<span class="num">{seconds}</span><span class="num">+{added:,} tokens</span>'
        )
    parts.append(f'<span class="peek">{escape(_peek(lane))}</span>')
    return "".join(parts)


def _peek(lane: Lane) -> str:
    """The beginning and the end of a folded branch's text."""
    text = " ".join(lane.text[:2000].split())
    if len(text) <= _PEEK and len(lane.text) <= 2000:
        return text
    end = " ".join(lane.text[-200:].split())
    return f"{text[: _PEEK // 2]} … {end[-_PEEK // 2 :]}"


def _turn(turn: Turn) -> str:
    if not turn.begins:
        return '<div class="turn-end"></div>'
    kind = turn.role if turn.role in _ROLES else "other"
    return f'<div class="turn"><span class="role {kind}">{escape(turn.role)}</span></div>'


def _split(split: Split) -> Iterator[str | Lane]:
    number = len(split.branches)
    title = "1 branch leaves" if number == 1 else f"{number} branches leave"
    yield f'<div class="split"><div class="fork" title="{escape(split.location)}">{title}</div>'
    yield from split.branches
    if split.joined is not None:
        yield f'<div class="join" title="{escape(split.joined.location)}">'
        yield f"{escape(split.joined.how)}</div>"
    yield "</div>"


def _call(call: Nested) -> Iterator[str | Lane]:
    yield f'<div class="split call"><div class="fork" title="{escape(call.location)}">'
    yield f"calls {escape(call.program)} ({call.scope})</div>"
    yield call.lane
    yield "</div>"


def _merge(merge: Merge) -> str:
    of = f" ({', '.join(merge.labels)})" if merge.labels else ""
    return (
        f'<div class="split"><div class="join" title="{escape(merge.location)}">'
        f"{escape(merge.how + of)}</div></div>"
    )


def _facts(value: Value) -> str:
    """The heading of a value: its name, times and tokens."""
    parts = [f"<b>{escape(value.name or 'unnamed')}</b>", f"<i>{value.kind}</i>"]
    if value.status != "done":
        parts.append(f'<span class="badge {value.status}">{value.status}</span>')
    parts += [f"<span>{escape(fact)}</span>" for fact in _told(value)]
    if value.location:
        parts.append(f'<span class="where">{escape(value.location)}</span>')
    return "".join(parts)


def _told(value: Value) -> Iterator[str]:
    if value.seconds or value.status == "done":
        yield seconds_text(value.seconds)
    if value.first_s is not None and value.start_s is not None and value.status == "done":
        yield f"first token {seconds_text(value.first_s - value.start_s)}"
    usage = value.usage
    if usage is not None:
        forced = f", {usage.num_forced_tokens:,} forced" if usage.num_forced_tokens else ""
        number = usage.num_generated_tokens
        yield f"{number:,} token{'s' * (number != 1)}{forced}"
        yield f"prompt {usage.num_prompt_tokens:,}, {usage.num_cached_tokens:,} cached"
    if value.finish_reason:
        stop = f" {value.stop_reason!r}" if value.finish_reason == "stop" else ""
        yield _FINISHES.get(value.finish_reason, value.finish_reason) + stop
    if value.choice is not None and value.choice.is_tie:
        yield "a tie: the first is taken"


def _typed(value: object) -> str:
    shown = repr(to_json(value)) if not isinstance(value, (int, float, bool)) else repr(value)
    return escape(shown if len(shown) <= _MOST_TYPED else shown[:_MOST_TYPED] + " …")


def _options(choice: Choice) -> str:
    """The options of a select with their probabilities and scores, the likeliest first."""
    ranked = sorted(range(len(choice.options)), key=lambda i: -choice.probabilities[i])
    rows = "".join(_option(choice, index) for index in ranked[:_MOST_OPTIONS])
    rest = ranked[_MOST_OPTIONS:]
    more = (
        f"<details class=more><summary>{len(rest)} less likely options</summary>"
        f'<div class="options">{"".join(_option(choice, index) for index in rest)}</div></details>'
        if rest
        else ""
    )
    return f'<div class="options">{rows}</div>{more}'


def _option(choice: Choice, index: int) -> str:
    share = choice.probabilities[index]
    chosen = " chosen" if index == choice.index else ""
    return (
        f'<div class="option{chosen}"><span class="name">{escape(choice.options[index])}</span>'
        f'<span class="share"><i style="width:{100 * share:.1f}%"></i></span>'
        f'<span class="num">{share:.1%}</span>'
        f'<span class="num">score {choice.scores[index]:.3g}</span></div>'
    )
