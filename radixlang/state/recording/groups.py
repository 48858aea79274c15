"""Groups of branches: a fork's children as one object, and their joined values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from radixlang.errors import ParameterError, ProgramError
from radixlang.execution.run import Run
from radixlang.graph.nodes import Fork, Join, Node, Ref
from radixlang.state.expressions.items import Appendable, Placeholder
from radixlang.state.reading.bound_values import Joined
from radixlang.state.reading.variables import unknown_variable

if TYPE_CHECKING:
    from radixlang.protocol import NextToken
    from radixlang.state.state import State

Missing: TypeAlias = Literal["none", "raise"]


class ForkGroup:
    """The branches of one fork, aligned by index.

    As a context manager it waits for its branches at the end of the block, and ends them.
    `group += x` appends to every branch: one expression for all, a list with one for each, or a
    function of the index.
    """

    __slots__ = ("_children", "parent")

    def __init__(self, parent: State, children: list[State]) -> None:
        self.parent = parent
        self._children = children

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[State]:
        return iter(self._children)

    @overload
    def __getitem__(self, key: int) -> State: ...
    @overload
    def __getitem__(self, key: slice) -> list[State]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...  # of the type of its gen
    def __getitem__(self, key: int | slice | str) -> State | list[State] | list[Any]:
        """A branch, some of them, or the values of a variable (None if a branch lacks it)."""
        if isinstance(key, str):
            if not any(key in child for child in self._children):
                raise unknown_variable(key, list(_all_names(self)), "any branch of the fork")
            return [_value_or_none(child, key) for child in self._children]
        return self._children[key]

    def __setitem__(self, index: int, state: State) -> None:
        """Allows `group[i] += …`, which assigns the same branch; any other state is refused."""
        if self._children[index] is not state:
            raise ParameterError("a branch of a fork cannot be replaced; write group[i] += …")

    def __iadd__(
        self, item: Appendable | list[Any] | tuple[Appendable, ...] | Callable[[int], Appendable]
    ) -> ForkGroup:
        if isinstance(item, (list, tuple)):
            if len(item) != len(self):
                raise ParameterError(
                    f"{len(item)} items were given to {len(self)} branches; give one item for each"
                )
            items: Iterable[Appendable] = item
        elif callable(item) and not isinstance(item, Placeholder):
            items = (item(index) for index in range(len(self)))
        else:
            items = [item] * len(self)
        for child, part in zip(self._children, items, strict=True):
            child.append(part)
        return self

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.cancel()
        elif not self.is_closed:
            self.join()

    @property
    def children_range(self) -> range:
        """Block ids of the branches."""
        first = self._children[0]._block.id
        return range(first, first + len(self._children))

    @property
    def is_closed(self) -> bool:
        """Whether the branches have been joined or cancelled."""
        return all(child._closed is not None for child in self._children)

    @property
    def errors(self) -> dict[int, ProgramError]:
        """Errors by branch index; waits until every branch is done."""
        run = self.parent._host
        if not isinstance(run, Run):
            return {}
        blocks = [child._block for child in self._children]
        is_ready = all(
            run.is_complete(block) and block.flushed == len(block.nodes) for block in blocks
        )
        run.readers.check_may_block(
            is_ready, "errors", "await the joined values or s.atext() first"
        )
        run.boundary(self.parent._block, "the errors of a fork")
        run.readers.wait(lambda: all(run.is_complete(block) for block in blocks))
        found = {index: run.loop.error_of(block) for index, block in enumerate(blocks)}
        return {index: error for index, error in found.items() if error is not None}

    @overload
    def join(
        self, name: str, /, *, reduce: Callable[[list[Any]], object] | None = None,
        missing: Missing = "none",
    ) -> Joined: ...  # fmt: skip
    @overload
    def join(
        self, first: str, second: str, /, *names: str, missing: Missing = "none"
    ) -> dict[str, Joined]: ...
    @overload
    def join(
        self, *, text: Literal[True], separator: str = "\n", missing: Missing = "none"
    ) -> Joined: ...
    @overload
    def join(self, *, missing: Missing = "none") -> dict[str, Joined]: ...
    def join(self, *names: str, **options: Any) -> Joined | dict[str, Joined]:
        """The same as `parent.join(group, …)`."""
        return join(self.parent, self, names, **options)

    def next_token(
        self, *, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> list[NextToken]:
        """The next token's distribution of every branch, read together; see `State.next_token`."""
        replies = [child._reader.next_token(among, top) for child in self._children]
        return [reply.result() for reply in replies]

    def close(self, why: str) -> None:
        """Close the branches: nothing more may be appended to them."""
        for child in self._children:
            child._closed = child._closed or why

    def cancel(self) -> None:
        """End the branches and free the memory that only they hold; the parent goes on."""
        for child in self._children:
            if isinstance(child._host, Run):
                child._host.flush()
                child._host.loop.cancel_block(child._block)
        self.close("has been cancelled")

    def nodes_since_fork(self) -> list[Node]:
        """The nodes that the parent has appended after this fork."""
        nodes = self.parent._block.nodes
        for index, node in enumerate(nodes):
            if isinstance(node, Fork) and self.children_range[0] in node.children:
                return nodes[index + 1 :]
        return []


def _value_or_none(state: State, name: str) -> object:
    return state[name] if name in state else None  # noqa: SIM401 - State.get converts types


def join(
    state: State,
    group: ForkGroup,
    names: tuple[str, ...] = (),
    *,
    text: bool = False,
    separator: str = "\n",
    reduce: Callable[[list[Any]], object] | None = None,
    missing: Missing = "none",
) -> Joined | dict[str, Joined]:
    """Wait for the branches of a group and collect their values or texts, as `State.join` says."""
    _check_join(state, group, names, text, reduce, missing)
    if text:
        joined: Joined | dict[str, Joined] = record_join(
            state, group, None, mode="text", separator=separator, missing=missing
        )
    elif reduce is not None:
        joined = record_join(state, group, names[0], mode="reduce", reducer=reduce,
                              missing=missing)  # fmt: skip
    else:
        wanted = names or _all_names(group)
        if not wanted:
            record_join(state, group, None, mode="wait", missing=missing)
        made = {name: record_join(state, group, name, missing=missing) for name in wanted}
        joined = made[names[0]] if len(names) == 1 else made
    group.close("has been joined")
    return joined


def record_join(state: State, group: ForkGroup, name: str | None, **fields: Any) -> Joined:
    """Record a join of one variable (None: of none), and bind it."""
    refs = () if name is None else tuple(child._variables.own_ref(name) for child in group)
    if fields["missing"] == "raise" and name is not None and None in refs:
        lacking = ", ".join(str(index) for index, ref in enumerate(refs) if ref is None)
        raise ParameterError(
            f"no variable {name!r} in branch {lacking} of the fork; generate it in every branch, "
            'or join with missing="none"'
        )
    slot = state._new_slot()
    node = Join(
        slot, name, group.children_range, refs, location=state._recorder.location(), **fields
    )
    state._host.record(state._block, node)
    ref = Ref(state._block.id, slot, name or "")
    joined = Joined(state._reader.joined, ref, () if node.mode in ("reduce", "text") else refs)
    state._variables.bind(name, joined)
    return joined


def _all_names(group: ForkGroup) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for child in group for name in child.names(own=True)))


def _check_join(
    state: State, group: ForkGroup, names: tuple[str, ...], text: bool, reduce: object, missing: str
) -> None:
    if not isinstance(group, ForkGroup) or group.parent is not state:
        raise ParameterError(
            "join needs a group that was forked from this state; group.join(…) joins it where it "
            "was forked"
        )
    if text and (names or reduce):
        raise ParameterError("join takes text=True, or names, not both")
    if reduce is not None and len(names) != 1:
        raise ParameterError(f"join with reduce needs one name, got {list(names)}")
    if missing not in ("none", "raise"):
        raise ParameterError(f'missing must be "none" or "raise", got {missing!r}')
    for name in names:
        if not any(name in child.names(own=True) for child in group):
            known = ", ".join(_all_names(group)) or "nothing"
            raise ParameterError(f"no branch of the fork has bound {name!r}; they bound {known}")
