"""Explanations and savings as cells of a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from radixlang.notebook_cells import cell, figures_html, table_html
from radixlang.units import bytes_text

if TYPE_CHECKING:
    from radixlang.explain.explanation import Explanation
    from radixlang.explain.savings import Savings


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
    return cell(f"<b>{escape(found.program)}</b>{figures_html(figures)}{table}{notes}")


def savings_to_cell(found: Savings) -> str:
    """What sharing saved, and the tree where it was asked for."""
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
    return cell(f"{figures_html(figures)}{tree}")
