"""The values of new nodes: one after another, or all together where the function can wait."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from radixlang.errors import ProgramError, ValueParseError
from radixlang.execution.run import Run
from radixlang.graph.nodes import Fork, Node
from radixlang.state.state import State

Value: TypeAlias = Callable[[State], float] | Callable[[State], Awaitable[float]]
BranchError: TypeAlias = ProgramError | ValueParseError


def values_of(value: Value, states: Sequence[State]) -> list[float | BranchError]:
    """The value of each branch, or its error. Branches that the function forks end here.

    An `async def` function runs for all branches together: while one waits, the others append, so
    what they generate runs in one batch. Any other function is called in order.

    Raises:
        Exception: a mistake of the function itself.
    """
    asks: Callable[[State], Any] = value
    with _forks_of(states):
        if inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(
            getattr(value, "__call__", None)  # noqa: B004 - an object with an async call
        ):
            found: list[float | BranchError] = _finished(_together(asks, states))
            return found
        return [_one(asks, state) for state in states]


def _one(asks: Callable[[State], Any], state: State) -> float | BranchError:
    try:
        return float(asks(state))
    except (ProgramError, ValueParseError) as error:
        return error


async def _together(
    asks: Callable[[State], Any], states: Sequence[State]
) -> list[float | BranchError]:
    async def one(state: State) -> float | BranchError:
        try:
            return float(await asks(state))
        except (ProgramError, ValueParseError) as error:
            return error

    return await asyncio.gather(*map(one, states))


def _finished(work: Any) -> Any:  # a coroutine, and what it returns
    """The result of a coroutine, on an event loop of its own: the program's thread may have one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(asyncio.run(work))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run, name="values of a search")
    thread.start()
    thread.join()
    (result,) = ended
    if isinstance(result, BaseException):
        raise result
    return result


@contextmanager
def _forks_of(states: Sequence[State]) -> Iterator[None]:
    """End the branches that are forked from these in the block, once they have run."""
    before = [len(state._block.nodes) for state in states]
    try:
        yield
    finally:
        for state, start in zip(states, before, strict=True):
            if isinstance(state._host, Run):
                state._host.flush()  # what is recorded runs before the end
                _close_below(state._host, state._block.nodes[start:])


def _close_below(run: Run, nodes: Sequence[Node]) -> None:
    for node in nodes:
        for child in node.children if isinstance(node, Fork) else ():
            block = run.blocks[child]
            _close_below(run, block.nodes)
            run.loop.close(block)
