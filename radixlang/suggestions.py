"""Parts of messages: the nearest known name for an unknown one, a shortened value."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like a name, or None if none is similar."""
    from difflib import get_close_matches  # only where there is a message to write

    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def suggestion(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """ "did you mean …?" with the nearest known name; else the known names, or `otherwise`."""
    names = list(known)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean {close!r}?"
    return f"known: {', '.join(names)}" if otherwise is None else otherwise


def shortened(value: object) -> str:
    """The repr of a value, of bounded length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
