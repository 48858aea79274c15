"""What a run will cost: the edges of its prompts, and how many generations read each."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from radixlang.graph.nodes import (
    Dynamic,
    Graph,
    Location,
)
from radixlang.hooks import hook
from radixlang.notebook_cells import cell, figures_html, table_html

if TYPE_CHECKING:
    from radixlang.state.state import State


@dataclass(frozen=True, slots=True)
class Edge:
    """A part of one branch: a run of text, or one generation.

    `num_readers` counts the generations whose prompt contains it: an edge is computed once, and
    without sharing `num_readers` times.
    """

    branch: tuple[int, ...]
    kind: str
    label: str
    num_tokens: int
    num_readers: int
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Predicted counts, in tokens.

    `num_prompt_tokens` sums the prompts of all generations; `num_shared_tokens` of them are found
    in the tree and `num_unique_tokens` are computed. `peak_kv_tokens` is the size of the tree at
    the end, `unshared_kv_tokens` the sum over branches if each had its own copy.
    """

    program: str
    edges: tuple[Edge, ...]
    num_generations: int
    num_prompt_tokens: int
    num_shared_tokens: int
    num_unique_tokens: int
    num_generated_tokens: int
    peak_kv_tokens: int
    unshared_kv_tokens: int
    is_exact: bool
    boundary: Dynamic | None
    graph: Graph
    codec: object

    @property
    def prefill_saved(self) -> float:
        """Share of all prompt tokens that need no computation, 0 to 1."""
        return self.num_shared_tokens / max(1, self.num_prompt_tokens)

    def kv_bytes(self, bytes_per_token: int) -> int:
        """Peak KV memory in bytes."""
        return self.peak_kv_tokens * bytes_per_token

    def check(self, state: State) -> CheckedPrediction:
        """Predict again with the answers of a finished run, and compare with its usage."""
        run = state._run()
        cells = {
            (cell.block, slot): cell
            for key, cell in run.cells.items()
            if (slot := key & ((1 << 24) - 1)) >= 0
        }
        again = hook("explain_graph")(self.graph, self.codec, chat=run.backend, _cells=cells)
        usage = state.usage()
        return CheckedPrediction(
            predicted=(again.num_prompt_tokens, again.num_shared_tokens,
                       again.num_generated_tokens),
            measured=(usage.num_prompt_tokens, usage.num_cached_tokens,
                      usage.num_generated_tokens),
        )  # fmt: skip

    def notes(self) -> list[str]:
        """What limits the prediction, one sentence each."""
        found = []
        if not self.is_exact:
            found.append("counted at 4 bytes a token: give a tokenizer for exact counts")
        if self.boundary is not None:
            found.append(f"stops at {self.boundary.location}: {self.boundary.reason}")
        return found

    def __repr__(self) -> str:
        return (
            f"<explanation of {self.program}: {self.num_generations} generations, "
            f"{self.num_prompt_tokens:,} prompt tokens ({self.prefill_saved:.0%} shared), at most "
            f"{self.num_generated_tokens:,} generated; print it to see every edge>"
        )

    def _repr_html_(self) -> str:
        return _cell(self)

    def __str__(self) -> str:
        lines = [f"program {self.program}: {self.num_generations} generations"]
        lines += [
            f"  {'/'.join(map(str, edge.branch)) or 'root':<10} {edge.kind:<5} "
            f"{edge.num_tokens:>7} tokens  read {edge.num_readers:>4} times  {edge.label}"
            for edge in self.edges
        ]
        lines.append(
            f"  prompts {self.num_prompt_tokens} tokens: {self.num_shared_tokens} shared, "
            f"{self.num_unique_tokens} computed ({self.prefill_saved:.0%} of prefill saved)"
        )
        lines.append(
            f"  generated at most {self.num_generated_tokens} tokens; KV {self.peak_kv_tokens} "
            f"tokens, {self.unshared_kv_tokens} unshared"
        )
        return "\n".join([*lines, *(f"  {note}" for note in self.notes())])


@dataclass(frozen=True, slots=True)
class CheckedPrediction:
    """(prompt, cached, generated) tokens: predicted with the generated answers, and measured."""

    predicted: tuple[int, int, int]
    measured: tuple[int, int, int]

    @property
    def is_equal(self) -> bool:
        """Whether every measured count is the predicted one."""
        return self.predicted == self.measured


def _cell(found: Explanation) -> str:
    """The explanation as a notebook cell: sums, then every edge with its tokens and readers."""
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
