"""Where the tokens of a text came from: cached, computed, sampled or forced."""

from __future__ import annotations

import math
import re

from radixlang.execution.pieces import Cell, Choice
from radixlang.protocol import Backend
from radixlang.views.trace import Span, SpanKind, Words

_MOST_ALTERNATIVES = 12
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Pending:
    """Prompt texts since the latest generation. The next one tells how much of them was cached.

    `above` are the texts that were pending on the parent when this branch left it: the first
    generation of either settles them too.
    """

    __slots__ = ("_texts", "above", "is_known")

    def __init__(self, above: Pending | None = None) -> None:
        self._texts: list[tuple[Words, int]] = []
        self.above = above
        self.is_known = False

    def add(self, words: Words, offset: int) -> None:
        """Add a text that begins `offset` characters after the start of the prompt."""
        self._texts.append((words, offset))

    def settle(self, num_cached: float) -> None:
        """Split every pending text at the number of characters that were cached."""
        pending: Pending | None = self
        while pending is not None and not pending.is_known:
            for words, offset in pending._texts:
                words.spans = _split_at(words.text, num_cached - offset)
            pending.is_known = True
            pending = pending.above


def _split_at(text: str, num_cached: float) -> list[Span]:
    cut = min(len(text), max(0, round(num_cached)))
    halves = (Span("cached", text[:cut]), Span("computed", text[cut:]))
    return [half for half in halves if half.text]


def cached_characters(cell: Cell, num_characters: int) -> float | None:
    """Characters of a prompt that were in the cache, from its generation's count of tokens.

    It is proportional, as the tokens of a prompt are not recorded. None if there is no count.
    """
    if cell.completion is None:
        return None
    usage = cell.completion.usage
    return num_characters * usage.num_cached_tokens / max(1, usage.num_prompt_tokens)


def cell_spans(cell: Cell, backend: Backend) -> list[Span]:
    """The text of a generation or a select; of a running or failed one, the text so far."""
    if cell.choice is not None:
        return _spans_if("forced", cell.text, odds(cell.choice))
    if cell.completion is None:
        return _spans_if("sampled", cell.partial or _so_far(cell))
    if cell.forced:
        return [Span("forced" if forced else "sampled", text) for text, forced in cell.forced]
    return token_spans(cell, backend) or _spans_if("sampled", cell.text)


def _spans_if(kind: SpanKind, text: str, note: str = "") -> list[Span]:
    return [Span(kind, text, note)] if text else []


def _so_far(cell: Cell) -> str:
    generation = cell.generation
    return "" if generation is None else "".join(delta.text for delta in generation.deltas)


def token_spans(cell: Cell, backend: Backend) -> list[Span]:
    """One span for each generated token with its probability; empty if that is not known.

    It is not known without `logprobs=True`, nor if tokens end inside a character.
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


def odds(choice: Choice) -> str:
    """The likeliest options of a select with their probabilities, one on a line."""
    ranked = sorted(
        zip(choice.probabilities, choice.options, strict=True), key=lambda each: -each[0]
    )
    return "\n".join(f"{share:.1%} {option!r}" for share, option in ranked[:_MOST_ALTERNATIVES])


def printable(text: str) -> str:
    """The text with control characters escaped, so that none acts on a terminal.

    Tabs and line ends stay, `\\r\\n` becomes `\\n`; lone surrogates are escaped too.
    """
    return _CONTROLS.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
