"""Checks of arguments by name: the nearest known one, or the range, is in the message."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from radixlang.errors import ParameterError


def refuse_unknown(unknown: dict[str, Any], function: Callable[..., Any], what: str) -> None:
    """Raise a ParameterError for the first name that the function has no keyword for."""
    known = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for name in unknown:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise ParameterError(f"unknown {what} parameter {name!r}; {hint}")


def check_at_least_1(**values: int | None) -> None:
    """Raise a ParameterError for a value that is neither None nor an integer of at least 1."""
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or value < 1):
            raise ParameterError(f"{name} must be an integer of at least 1, got {value!r}")
