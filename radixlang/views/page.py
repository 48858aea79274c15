"""The view of a run as one self-contained HTML file: no network, light and dark, any width.

The program's tree folds and opens; each branch shows how long it took and what it added to the
KV cache; tokens are coloured by where they came from, and those generated with `logprobs=True`
tell their probability and the alternatives.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any

from radixlang.execution.branch_run import Cell
from radixlang.execution.run import Run
from radixlang.explain.savings import bytes_text
from radixlang.program.state_values import Reading
from radixlang.views.run_tree import Branch, Span, branches_of

_MAX_OPEN = 80  # branches open at first: as many whole levels as stay below this
_PEEK = 60
_MARKUP = re.compile(r"<\|\w+\|>|<(?:start|end)_of_turn>|<bos>|</?s>")


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the generations of one branch took."""

    seconds: float
    num_cached: int
    num_added: int  # tokens that this branch added to the tree
    num_generated: int


def run_to_page(source: Run | Reading) -> str:
    """The whole page for a run, or for a state's run."""
    run = source if isinstance(source, Run) else source._run()
    branches = branches_of(run)
    costs = [_cost(branch) for branch in branches]
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(run.name),
        subtitle=escape(f"on {run.backend.model_name}, seed {run.seed}"),
        facts="".join(_facts(run, costs)),
        tree="".join(_tree(run, branches, costs)),
    )


def _cost(branch: Branch) -> _Cost:
    usages = [cell.completion.usage for cell in branch.cells if cell.completion is not None]
    generated = sum(usage.num_generated_tokens for usage in usages)
    return _Cost(
        seconds=sum(usage.total_s for usage in usages),
        num_cached=sum(usage.num_cached_tokens for usage in usages),
        num_added=sum(usage.num_computed_tokens for usage in usages) + generated,
        num_generated=generated,
    )


def _facts(run: Run, costs: list[_Cost]) -> Iterator[str]:
    usages = [cell.completion.usage for cell in tuple(run.cells.values()) if cell.completion]
    prompt = sum(usage.num_prompt_tokens for usage in usages)
    cached = sum(usage.num_cached_tokens for usage in usages)
    forced = sum(usage.num_forced_tokens for usage in usages)
    generated = sum(cost.num_generated for cost in costs)
    figures = [
        (f"{len(costs):,}", "branches"),
        (f"{prompt:,}", "prompt tokens"),
        (f"{cached / max(1, prompt):.0%}", "of them cached"),
        (f"{prompt - cached:,}", "computed"),
        (f"{generated:,}", f"generated, {forced:,} forced" if forced else "generated"),
    ]
    size = _token_bytes(run.backend)
    if size:
        added = sum(cost.num_added for cost in costs)
        figures.append((bytes_text(added * size), "of keys and values added"))
    for number, name in figures:
        yield f"<li><b>{escape(number)}</b><span>{escape(name)}</span></li>"


def _token_bytes(backend: Any) -> float:
    """Bytes of keys and values a token, where the backend tells; else 0."""
    if not (hasattr(backend, "stats") and hasattr(backend, "path_tokens")):
        return 0.0
    held = backend.path_tokens()[0]
    return backend.stats().kv_bytes_used / held if held else 0.0


def _tree(run: Run, branches: list[Branch], costs: list[_Cost]) -> Iterator[str]:
    slowest = max((cost.seconds for cost in costs), default=0.0) or 1.0
    size = _token_bytes(run.backend)
    max_depth = _open_depth(branches)
    for index, (branch, cost) in enumerate(zip(branches, costs, strict=True)):
        depth_after = branches[index + 1].depth if index + 1 < len(branches) else 0
        opened = " open" if branch.depth <= max_depth else ""
        yield f"<details{opened}><summary>{_summary(branch, cost, slowest, size)}</summary>"
        if branch.spans:
            yield f"<pre>{''.join(map(_span, branch.spans))}</pre>"
        yield "</details>" * max(0, branch.depth - depth_after + 1)


def _open_depth(branches: list[Branch]) -> int:
    """The deepest level that is open at first; the root always is."""
    num_at = Counter(branch.depth for branch in branches)
    sums = accumulate(num_at[depth] for depth in range(len(num_at)))
    return max(0, sum(total <= _MAX_OPEN for total in sums) - 1)


def _summary(branch: Branch, cost: _Cost, slowest: float, size: float) -> str:
    parts = [f"<b>{escape(branch.label)}</b>"]
    if cost.num_added:
        width = round(4 * cost.seconds / slowest, 2)
        memory = f" ({bytes_text(cost.num_added * size)})" if size else ""
        parts.append(f'<span class="num"><i class="bar" style="width:{width}em"></i>'
                     f"{_seconds(cost.seconds)}</span>")  # fmt: skip
        parts.append(f'<span class="num">+{cost.num_added:,} tokens{memory}, '
                     f"{cost.num_cached:,} cached</span>")  # fmt: skip
    parts.append(f'<span class="peek">{escape(_peek(branch))}</span>')
    return "".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def _peek(branch: Branch) -> str:
    """The end of what a closed branch holds, without a chat's markup."""
    text = " ".join(_MARKUP.sub(" ", "".join(span.text for span in branch.spans)).split())
    return text if len(text) <= _PEEK else "…" + text[1 - _PEEK :]


def _span(span: Span) -> str:
    note = f' data-p="{escape(span.note)}"' if span.note else ""
    return f'<span class="{span.kind}"{note}>{_with_markup(span.text)}</span>'


def _with_markup(text: str) -> str:
    """Escaped text in which a chat's markup stands back."""
    parts, at = [], 0
    for found in _MARKUP.finditer(text):
        parts += [escape(text[at : found.start()]), f"<i>{escape(found[0])}</i>"]
        at = found.end()
    return "".join([*parts, escape(text[at:])])


def token_spans(cell: Cell, backend: Any) -> list[Span]:
    """One span a generated token with its probability; empty where that is not known.

    It is not known without `logprobs=True`, nor where tokens end inside a character.
    """
    completion = cell.completion
    if completion is None or not completion.logprobs:
        return []
    texts = [backend.decode([entry.token_id]) for entry in completion.logprobs]
    if not "".join(texts).startswith(completion.text):
        return []
    spans, left = [], len(completion.text)
    for text, entry in zip(texts, completion.logprobs, strict=True):
        lines = [f"{math.exp(entry.logprob):.1%} {text!r}"]
        lines += [f"{math.exp(value):.1%} {backend.decode([other])!r}"
                  for other, value in entry.top if other != entry.token_id]  # fmt: skip
        if left > 0:
            spans.append(Span("sampled", text[:left], "\n".join(lines)))
        left -= len(text)
    return spans
