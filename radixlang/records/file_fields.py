"""The fields that a saved file must have, checked before any of them is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

from radixlang.errors import ParameterError

Fields: TypeAlias = Mapping[str, Any]  # of a file, whose types check_fields has checked
_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "an object",
          type(None): "null"}  # fmt: skip


def check_fields(data: object, wanted: object, what: str, at: str = "") -> None:
    """Raise a ParameterError for the first part of a file's data that is not as wanted.

    `wanted` is a type, a tuple of alternatives, a list with the form of every item, or an object
    with the form of each required field.
    """
    if isinstance(wanted, tuple):
        if not any(_fits(data, each) for each in wanted):
            _refuse(data, " or ".join(map(_name, wanted)), what, at)
    elif isinstance(wanted, list):
        if not isinstance(data, list):
            _refuse(data, "a list", what, at)
        for index, item in enumerate(data):
            check_fields(item, wanted[0], what, f"{at}[{index}]")
    elif isinstance(wanted, Mapping):
        if not isinstance(data, dict):
            _refuse(data, "an object", what, at)
        for name, form in wanted.items():
            check_fields(data.get(name), form, what, f"{at}.{name}" if at else name)
    elif not _fits(data, wanted):
        _refuse(data, _name(wanted), what, at)


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


def _fits(data: object, wanted: object) -> bool:
    try:
        if isinstance(wanted, type):
            return isinstance(data, wanted) and (wanted is bool or not isinstance(data, bool))
        check_fields(data, wanted, "")
    except ParameterError:
        return False
    return True


def _name(wanted: object) -> str:
    if isinstance(wanted, type):
        return _NAMES[wanted]
    return f"an object with {', '.join(wanted)}" if isinstance(wanted, Mapping) else "a list"


def _refuse(data: object, wanted: str, what: str, at: str) -> NoReturn:
    shown = repr(data) if len(repr(data)) <= 60 else f"{repr(data)[:57]}..."
    raise ParameterError(
        f"the {what} is damaged: {at or 'its data'} has to be {wanted}, and is {shown}. "
        "It was changed or cut after it was saved; save it again"
    )
