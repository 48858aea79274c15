"""The trace of a run as one self-contained HTML file, and as a cell of a notebook.

The page needs no network, fits any width, follows the light or dark theme of the reader's system
or notebook, and can be used by keyboard alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template

from radixlang.execution.run import Run
from radixlang.notebook_cells import cell
from radixlang.units import bytes_text
from radixlang.views.timeline import timeline_html
from radixlang.views.trace import Trace
from radixlang.views.trace_builder import trace_of
from radixlang.views.trace_html import failure_html, long_text_html, seconds_text, trunk_html
from radixlang.views.trace_text import summary

_LIVE_MS = 1500  # milliseconds after which the page of a running run reloads itself
_HERE = Path(__file__).parent


def run_to_page(run: Run) -> str:
    """The whole page of a run, which may still go on or have failed."""
    trace = trace_of(run)
    return Template(_asset("page.html")).substitute(
        title=escape(trace.name),
        subtitle=escape(_subtitle(trace)),
        style=_asset("trace.css") + _asset("page.css"),
        script=_asset("page.js"),
        live=_LIVE_MS if trace.status == "running" else "",
        failure=_failure(trace),
        facts="".join(_facts(trace, run.backend)),
        arguments="".join(_arguments(trace)),
        timeline="".join(timeline_html(trace)),
        tree="".join(trunk_html(trace)),
    )


def run_to_cell(run: Run) -> str:
    """The trace for a notebook: the same tree without tools, in the notebook's theme."""
    trace = trace_of(run)
    legend = " ".join(
        f'<span class="key {kind}">{kind}</span>'
        for kind in ("cached", "computed", "sampled", "forced")
    )
    return cell(
        f'<div class="soft">{escape(summary(trace))} · {legend}</div>'
        f"{''.join(trunk_html(trace, notes='title'))}"
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _subtitle(trace: Trace) -> str:
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(trace.started_at))
    ended = {"done": "finished in", "failed": "failed after", "running": "running for"}
    return (
        f"on {trace.model_name}, seed {trace.seed}, began {began}, "
        f"{ended.get(trace.status, trace.status)} {seconds_text(trace.seconds)}"
    )


def _failure(trace: Trace) -> str:
    """The error, and a link to where it happened."""
    if trace.failure is None:
        return ""
    place = ""
    if trace.failed_in is not None:
        failed = next((v.id for v in trace.failed_in.values() if v.status == "failed"), "")
        target = failed or f"b{trace.failed_in.id}"
        place = (
            f'<button type="button" class="jump" data-to="{target}">'
            f"in {escape(trace.failed_in.label)}</button>"
        )
    return f"{failure_html(trace.failure)}{place}"


def _facts(trace: Trace, backend: object) -> Iterator[str]:
    usages = trace.usages()
    prompt = sum(usage.num_prompt_tokens for usage in usages)
    cached = sum(usage.num_cached_tokens for usage in usages)
    forced = sum(usage.num_forced_tokens for usage in usages)
    generated = sum(usage.num_generated_tokens for usage in usages)
    figures = [
        (f"{len(trace.lanes):,}", "branches"),
        (f"{prompt:,}", "prompt tokens"),
        (f"{cached / max(1, prompt):.0%}", "of them cached"),
        (f"{prompt - cached:,}", "computed"),
        (f"{generated:,}", f"generated, {forced:,} forced" if forced else "generated"),
    ]
    size = _token_bytes(backend)
    if size:
        added = (prompt - cached + generated) * size
        figures.append((bytes_text(added), "of keys and values added"))
    for number, name in figures:
        yield f"<li><b>{escape(number)}</b><span>{escape(name)}</span></li>"


def _arguments(trace: Trace) -> Iterator[str]:
    """The program's arguments by name."""
    if not trace.arguments:
        return
    yield '<dl class="arguments">'
    for name, value in trace.arguments.items():
        text = value if isinstance(value, str) else repr(value)
        yield f"<dt>{escape(name)}</dt><dd>{long_text_html(text)}</dd>"
    yield "</dl>"


def _token_bytes(backend: object) -> float:
    """Bytes of keys and values of a token; 0 if the backend does not know."""
    if not (hasattr(backend, "stats") and hasattr(backend, "path_tokens")):
        return 0.0
    held = backend.path_tokens()[0]
    return backend.stats().kv_bytes_used / held if held else 0.0
