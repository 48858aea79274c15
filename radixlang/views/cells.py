"""Results as cells of a notebook, light or dark as the notebook is; and as one line of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixlang.execution.run import Run
from radixlang.graph.nodes import Ref
from radixlang.views.spans import printable

if TYPE_CHECKING:
    from radixlang.explain.explanation import Explanation
    from radixlang.explain.savings import Savings
    from radixlang.graph.nodes import Graph
    from radixlang.program.state_values import Reading

_MOST_ROWS = 30  # of a table; the others are folded away
_MOST_VALUE = 40  # characters of a value in one line
_MOST_NAMES = 6


def cell(content: str) -> str:
    """Markup as a cell, with the colours of the view."""
    style = (Path(__file__).parent / "trace.css").read_text(encoding="utf-8")
    return f'<div class="rl cell"><style>{style}</style>{content}</div>'


def explanation_to_cell(found: Explanation) -> str:
    """What a run will cost: the sums, then every edge with its tokens and readers."""
    figures = [
        (found.num_generations, "generations"),
        (found.num_prompt_tokens, "prompt tokens"),
        (found.num_shared_tokens, f"shared ({found.prefill_saved:.0%})"),
        (found.num_unique_tokens, "computed"),
        (found.num_generated_tokens, "generated at most"),
        (found.peak_kv_tokens, "tokens of keys and values"),
        (found.unshared_kv_tokens, "without sharing"),
    ]
    rows = [
        ("/".join(map(str, edge.branch)) or "trunk", edge.kind, edge.label, edge.num_tokens,
         edge.num_readers)
        for edge in found.edges
    ]  # fmt: skip
    notes = "".join(f'<div class="note">{escape(note)}</div>' for note in found.notes())
    table = table_html(("branch", "kind", "text", "tokens", "read"), rows)
    return cell(f"<b>{escape(found.program)}</b>{_figures(figures)}{table}{notes}")


def savings_to_cell(found: Savings) -> str:
    """What sharing saved, and the tree where it was asked for."""
    from radixlang.explain.savings import bytes_text

    figures = [
        (found.num_prompt_tokens, "prompt tokens"),
        (found.num_cached_tokens, f"cached ({found.hit_rate:.0%})"),
        (found.num_computed_tokens, "computed"),
        (found.num_generated_tokens, "generated"),
        (found.num_forced_tokens, "of them forced"),
        (bytes_text(found.kv_bytes), "of keys and values"),
        (bytes_text(found.kv_bytes_unshared), f"unshared, {found.memory_factor:.1f} times as much"),
    ]
    tree = f'<div class="words">{escape(found.tree)}</div>' if found.tree else ""
    return cell(f"{_figures(figures)}{tree}")


def graph_to_cell(graph: Graph) -> str:
    """The graph as nested rows, a line a node."""
    from radixlang.graph.drawing import rows_of

    rows = "".join(
        f'<div class="node {row.kind}" style="margin-left:{1.5 * row.depth:g}em" '
        f'title="{escape(row.location)}">{escape(row.label)}</div>'
        for row in rows_of(graph)
    )
    return cell(f"<b>{escape(graph.name)}</b>{rows}")


def _figures(figures: Iterable[tuple[Any, str]]) -> str:
    items = "".join(
        f"<span><b>{number if isinstance(number, str) else f'{number:,}'}</b> "
        f'<span class="soft">{escape(name)}</span></span>'
        for number, name in figures
    )
    return f'<div class="figures">{items}</div>'


def table_html(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; rows beyond the first few are behind a fold."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    shown, folded = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    table = f"<table><tr>{head}</tr>{''.join(map(_row, shown))}</table>"
    if not folded:
        return table
    more = f"<table>{''.join(map(_row, folded))}</table>"
    return f"{table}<details><summary>{len(folded):,} more</summary>{more}</details>"


def _row(values: Sequence[Any]) -> str:
    drawn = (
        f"<td class=num>{value:,}</td>" if isinstance(value, int) else f"<td>{escape(value)}</td>"
        for value in values
    )  # fmt: skip
    return f"<tr>{''.join(drawn)}</tr>"


def state_line(state: Reading) -> str:
    """A state in one line: how it stands and what it holds by now; it waits for nothing."""
    recorder, block = state._recorder, state._block
    place = f", branch {list(block.path)}" if block.path else ""
    if not isinstance(recorder, Run):
        return f"<state of {recorder.name}{place}, traced without a model>"
    error = recorder.error_of(block)
    stands = "finished" if recorder.finished else "running"
    if error is not None:
        stands = f"failed with {type(error.__cause__ or error).__name__}"
    names = state.names()
    values = [_named(state, recorder, name) for name in names[:_MOST_NAMES]]
    more = [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    held = f": {', '.join(values + more)}" if names else ""
    return f"<state of {recorder.name}{place}, {stands}{held}>"


def _named(state: Reading, run: Run, name: str) -> str:
    found = state._lookup(name)
    ref = found if isinstance(found, Ref) else getattr(found, "ref", None)
    if not isinstance(ref, Ref):
        return f"{name}={_short(found.value)}"
    cell = run.cells.get((ref.block << 24) | ref.slot)
    if cell is None or not cell.done or cell.error is not None or ref is not found:
        return name
    return f"{name}={_short(cell.value)}"


def _short(value: Any) -> str:
    shown = printable(repr(value))
    return shown if len(shown) <= _MOST_VALUE else shown[: _MOST_VALUE - 1] + "…"
