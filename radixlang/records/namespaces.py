"""The namespace that a file was made in, against the one it is asked for."""

from __future__ import annotations

from typing import Any

from radixlang.errors import ParameterError


def check_namespace(kept: Any, asked: str | None, kind: str) -> str:
    """The file's namespace; the prompts in it are never put into another.

    Raises:
        ParameterError: the file has none, or the caller asks for another.
    """
    if not isinstance(kept, str):
        raise ParameterError(f"the {kind} names no namespace, got {kept!r}")
    if asked is not None and asked != kept:
        raise ParameterError(
            f"the {kind} was made in the namespace {kept!r}, not in {asked!r}; "
            f"give namespace={kept!r}, or none at all"
        )
    return kept
