"""Listeners: functions that are called for every run of this process, at its start or end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

from radixlang.errors import ParameterError

if TYPE_CHECKING:
    from radixlang.state.state import State

When = Literal["start", "end"]
Listener: TypeAlias = "Callable[[State], object]"
_listeners: dict[When, tuple[Listener, ...]] = {"start": (), "end": ()}


class Subscription:
    """A registered listener, until `stop()` or the end of a `with` block."""

    __slots__ = ("_listener", "_when")

    def __init__(self, listener: Listener, when: When) -> None:
        self._listener, self._when = listener, when

    def stop(self) -> None:
        """Call the listener for no further run. Idempotent."""
        _listeners[self._when] = tuple(
            each for each in _listeners[self._when] if each != self._listener
        )

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def on_run(listener: Listener, *, when: When = "end") -> Subscription:
    """Call `listener(state)` for every run of this process.

    Args:
        when: "end": when a run has finished or failed (`state.error` says which), before `run`
            returns or raises. "start": before the program's first node runs.

    It is called on the thread that reads the run (the caller of `run`, the reader of a batch's
    results), never on the engine's. Its exceptions become warnings; they do not fail the run.
    Runs nested in a state are part of that state's run.
    """
    if when not in _listeners:
        raise ParameterError(f'when must be "start" or "end", got {when!r}')
    subscription = Subscription(listener, when)
    subscription.stop()  # a listener is called once, however often it is registered
    _listeners[when] = (*_listeners[when], listener)
    return subscription


@contextmanager
def told(state: State) -> Iterator[None]:
    """A context for a whole run: calls listeners at its start, and at its end or failure."""
    tell("start", state)
    try:
        yield
    finally:
        tell_end(state)


def tell_end(state: State) -> None:
    """Wait for the end of a run and call its listeners; does not wait if there are none."""
    if _listeners["end"]:
        run = state._run()
        run.readers.wait(lambda: run.finished)
        tell("end", state)


def tell(when: When, state: State) -> None:
    """Call the listeners, one after the other."""
    for listener in _listeners[when]:
        try:
            listener(state)
        except Exception as error:
            name = getattr(listener, "__qualname__", repr(listener))
            said = f"the on_run listener {name} raised {type(error).__name__}: {error}"
            warnings.warn(f"{said}; the run itself is not affected", RuntimeWarning, stacklevel=3)
