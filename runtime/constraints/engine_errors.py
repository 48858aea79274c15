"""The state of the mask engine after a call: it never raises, so an error is made here."""

from __future__ import annotations

import llguidance

from radixlang.constraints.specs import Constraint
from radixlang.errors import InvalidConstraintError, UnsupportedConstraintError

_SIGNS_OF_BOUNDS = ("too complex", "too large", "limit", "fuel", "too many", "u16::MAX")


def raise_on_error(engine: llguidance.LLMatcher, spec: Constraint) -> None:
    """Raise the error in an engine's state, if there is one.

    Raises:
        UnsupportedConstraintError: it reached a bound on time or memory.
        InvalidConstraintError: any other error.
    """
    if not engine.is_error():
        return
    message = engine.get_error().strip()
    first = message.splitlines()[0][:300] if message else "unknown error"
    if reached_a_bound(engine):
        raise UnsupportedConstraintError(
            f"{brief(spec)} is too complex for the bounds on time and memory: {first}"
        )
    if first.startswith("NoExtension"):
        raise InvalidConstraintError(f"{brief(spec)} can match no text at all")
    raise InvalidConstraintError(f"{brief(spec)} cannot be used: {first}")


def reached_a_bound(engine: llguidance.LLMatcher) -> bool:
    """Whether an engine ended because of a bound on time or memory."""
    return engine.is_error() and any(sign in engine.get_error() for sign in _SIGNS_OF_BOUNDS)


def brief(spec: Constraint) -> str:
    """A constraint on one line, for messages."""
    text = next(
        (str(v) for name in ("pattern", "schema", "text", "options", "tools", "parts")
         if (v := getattr(spec, name, None)) is not None), "",
    )  # fmt: skip
    return f"{type(spec).__name__}({text if len(text) <= 80 else text[:77] + '…'})"
