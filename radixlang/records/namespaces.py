"""The namespace in which a file was made, compared with the one that the caller wants."""

from __future__ import annotations

from radixlang.errors import ParameterError


def check_namespace(kept: object, asked: str | None, kind: str) -> str:
    """The file's namespace; its prompts never move to another one.

    Raises:
        ParameterError: the file has none, or the caller wants another.
    """
    if not isinstance(kept, str):
        raise ParameterError(f"the {kind} names no namespace, got {kept!r}")
    if asked is not None and asked != kept:
        raise ParameterError(
            f"the {kind} was made in the namespace {kept!r}, not in {asked!r}; "
            f"give namespace={kept!r}, or none at all"
        )
    return kept
