"""Turns of a conversation in the text of a branch, where the server has the template.

A turn is written between marks of Unicode's private use area, in Markup; before a request they are
read back into messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from radixlang.errors import ParameterError
from radixlang.protocol import Markup, Message

_BEGIN, _AFTER_ROLE, _END = "\U000f5a01", "\U000f5a02", "\U000f5a03"
_MARK = re.compile(f"{_BEGIN}([\\w-]*){_AFTER_ROLE}|{_END}")


def render_turns(messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    """Turns with marks around them."""
    turns = [f"{_BEGIN}{m.role}{_AFTER_ROLE}{m.content}{_END}" for m in messages]
    return "".join(turns) + (f"{_BEGIN}assistant{_AFTER_ROLE}" if add_generation_prompt else "")


def read_turns(pieces: Sequence[str]) -> tuple[str, list[Message], str | None]:
    """(text outside of any turn, closed turns, content of the open turn or None).

    Raises:
        ParameterError: text stands between turns.
    """
    outside, closed = "", list[Message]()
    role: str | None = None
    content = ""

    def write(text: str) -> None:
        nonlocal outside, content
        if role is not None:
            content += text
        else:
            outside += text

    for piece in pieces:
        if not isinstance(piece, Markup):
            write(piece)
            continue
        at = 0
        for mark in _MARK.finditer(piece):
            write(piece[at : mark.start()])
            at = mark.end()
            if mark[1] is not None:
                role, content = mark[1], ""
            elif role is not None:
                closed.append(Message(role, content))
                role = None
        write(piece[at:])
    if outside and (closed or role is not None):
        raise ParameterError(
            f"text outside of turns ({outside!r:.60}) cannot be sent in a conversation; put it "
            "into user(…) or system(…)"
        )
    if role not in (None, "assistant"):
        raise ParameterError(f"the endpoint writes the assistant's turns only, not {role!r}'s")
    return outside, closed, content if role is not None else None
