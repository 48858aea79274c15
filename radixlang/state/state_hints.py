"""Errors that say what to write instead of attributes that a state does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixlang.errors import ParameterError
from radixlang.suggestions import shortened, suggestion

if TYPE_CHECKING:
    from radixlang.state.state import State

_APPENDED = ("gen", "select", "system_begin", "system_end", "user_begin", "user_end",
             "assistant_begin", "assistant_end")  # fmt: skip
_OF_PROGRAM = ("run", "arun", "run_batch", "as_completed", "trace", "explain", "compile")


def unknown_attribute(state: State, name: str) -> AttributeError:
    """The error of `state.name`: variables are read as s["x"], expressions are appended."""
    said = f"a state has no attribute {name!r}; "
    if name in state.names():
        return AttributeError(f"{said}read the variable as s[{name!r}]")
    if name in _APPENDED:
        return AttributeError(f"{said}write s += {name}(…)")
    if name in _OF_PROGRAM:
        return AttributeError(f"{said}programs have: write program.{name}(…)")
    known = [each for each in dir(type(state)) if not each.startswith("_")]
    return AttributeError(said + suggestion(name, known, f"a variable is read as s[{name!r}]"))


def added_error(name: str) -> ParameterError:
    """The error of `s + x` and `x + s`: a state is not text."""
    return ParameterError(
        f"+ makes no new state of program {name!r}; write s += … to append to it, s.fork(n) to "
        "branch, and s.text() for its text"
    )


def check_no_content(role: str, content: tuple[object, ...]) -> None:
    """Raise a ParameterError for `s.system("text")`: a turn is a block, or an expression."""
    if content:
        raise ParameterError(
            f"s.{role}() opens a turn as a block and takes no text, got {shortened(content[0])}; "
            f"write s += {role}(…), or with s.{role}(): s += …"
        )
