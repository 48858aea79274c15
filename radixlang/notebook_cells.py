"""Cells of a notebook, light or dark as the notebook is: figures, tables, and their frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

_MOST_ROWS = 30  # of a table; the others are folded


def cell(content: str) -> str:
    """Markup framed as a cell, with the colours of the view."""
    style = (Path(__file__).parent / "views" / "trace.css").read_text(encoding="utf-8")
    return f'<div class="rl cell"><style>{style}</style>{content}</div>'


def figures_html(figures: Iterable[tuple[float | str, str]]) -> str:
    """Numbers, each with its name."""
    items = "".join(
        f"<span><b>{number if isinstance(number, str) else f'{number:,}'}</b> "
        f'<span class="soft">{escape(name)}</span></span>'
        for number, name in figures
    )
    return f'<div class="figures">{items}</div>'


def table_html(heads: Sequence[str], rows: Sequence[Sequence[int | str]]) -> str:
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


def _row(values: Sequence[int | str]) -> str:
    drawn = (
        f"<td class=num>{value:,}</td>" if isinstance(value, int) else f"<td>{escape(value)}</td>"
        for value in values
    )  # fmt: skip
    return f"<tr>{''.join(drawn)}</tr>"
