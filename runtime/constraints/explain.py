"""Matches finished texts with compiled constraints: accepted or not, why, and the captures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from radixlang.constraints.specs import Capture, Constraint, JsonSchema, Match, Sequence
from radixlang.errors import ConstraintError, UnsupportedConstraintError
from radixlang.runtime.constraints.json_spelling import as_masks_write
from radixlang.runtime.constraints.matcher import Matcher

_CHUNK = 4096


class Compiled(Protocol):
    """A compiled constraint, as matching a finished text needs it."""

    spec: Constraint

    def matcher(self) -> Matcher: ...
    def check(self, text: str) -> None: ...
    def captures(self, text: str) -> dict[str, str]: ...


def explain_text(compiled: Compiled, text: str) -> Match:
    """The match of a text with a byte-level constraint, in any spelling of JSON."""
    found = _explained(compiled, text)
    if found.status == "rejected" and isinstance(compiled.spec, JsonSchema):
        plain = as_masks_write(text, compiled.spec.schema)
        again = _explained(compiled, plain) if plain != text else found
        if again.status != "rejected":
            return replace(again, position=len(text))
    return found


def _explained(compiled: Compiled, text: str) -> Match:
    matcher = compiled.matcher()
    data = text.encode("utf-8", "surrogatepass")
    taken = consume_longest(matcher, data)
    if taken < len(data):
        position = len(data[:taken].decode("utf-8", "ignore"))
        matcher = _at_character(compiled, data, taken)
        return Match("rejected", position, matcher.describe_next())
    if not matcher.is_complete:
        return Match("incomplete", len(text), matcher.describe_next())
    try:
        compiled.check(text)
    except ConstraintError as error:
        return Match("rejected", len(text), str(error))
    return Match("accepted", len(text), captures=compiled.captures(text))


def consume_longest(matcher: Matcher, data: bytes) -> int:
    """Consume the longest valid beginning; returns its number of bytes."""
    taken = 0
    while taken < len(data):
        chunk = list(data[taken : taken + _CHUNK])
        num = matcher.num_valid(chunk)
        matcher.consume(chunk[:num])
        taken += num
        if num < len(chunk) and not _may_follow(matcher, chunk[num]):
            break
    return taken


def _may_follow(matcher: Matcher, byte: int) -> bool:
    """Whether the mask allows the byte at which the engine stopped, so that it hit a bound."""
    try:
        row = matcher.allowed_row()
    except UnsupportedConstraintError:
        raise
    except ConstraintError:
        return False
    return bool(int(row[byte // 32]) >> byte % 32 & 1) and matcher.num_valid([byte]) == 1


def _at_character(compiled: Compiled, data: bytes, taken: int) -> Matcher:
    """A matcher before the character at which the text becomes invalid."""
    while taken < len(data) and taken > 0 and data[taken] & 0xC0 == 0x80:
        taken -= 1
    matcher = compiled.matcher()
    consume_longest(matcher, data[:taken])
    return matcher


def capture_parts(
    spec: Constraint, text: str, compile_bytes: Callable[[Constraint], Compiled]
) -> dict[str, str]:
    """The variables of a Sequence's captures; each part takes as much text as it can."""
    if not isinstance(spec, Sequence) or not any(isinstance(p, Capture) for p in spec.parts):
        return {}
    data = text.encode()
    ends = _split(spec.parts, data, 0, compile_bytes, {})
    found: dict[str, str] = {}
    start = 0
    for part, end in zip(spec.parts, ends or (), strict=False):
        if isinstance(part, Capture):
            piece = data[start:end].decode()
            found[part.name] = piece
            found.update(compile_bytes(part.constraint).captures(piece))
        elif not isinstance(part, str):
            found.update(compile_bytes(part).captures(data[start:end].decode()))
        start = end
    return found


def _split(
    parts: tuple[str | Constraint | Capture, ...], data: bytes, start: int,
    compile_bytes: Callable[[Constraint], Compiled],
    failed: dict[tuple[int, int], None],
) -> list[int] | None:  # fmt: skip
    """Where each part ends, the first part being as long as possible; None if nowhere."""
    if not parts:
        return [] if start == len(data) else None
    if (len(parts), start) in failed:
        return None
    for end in reversed(_ends(parts[0], data, start, compile_bytes)):
        rest = _split(parts[1:], data, end, compile_bytes, failed)
        if rest is not None:
            return [end, *rest]
    failed[len(parts), start] = None
    return None


def _ends(
    part: str | Constraint | Capture,
    data: bytes,
    start: int,
    compile_bytes: Callable[[Constraint], Compiled],
) -> list[int]:
    """Every position where a part that begins at `start` can end."""
    if isinstance(part, str):
        literal = part.encode()
        return [start + len(literal)] if data.startswith(literal, start) else []
    matcher = compile_bytes(part.constraint if isinstance(part, Capture) else part).matcher()
    ends = [start] if matcher.is_complete else []
    for place in range(start, len(data)):
        if not matcher.num_valid([data[place]]):
            break
        matcher.consume([data[place]])
        if matcher.is_complete:
            ends.append(place + 1)
    return ends
