"""The state of a program, to which its function appends, from which it reads, which it forks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from radixlang.errors import ParameterError, StateClosedError
from radixlang.execution.failures import closed_error
from radixlang.execution.run import Run
from radixlang.graph.nodes import (
    Adopt,
    Arg,
    Block,
    Call,
    Fork,
    Gen,
    Graph,
    Join,
    Node,
    OnError,
    Option,
    Part,
    Ref,
    RoleBegin,
    RoleEnd,
    Scope,
    Select,
    Text,
    check_scope,
)
from radixlang.protocol import Message, check_role
from radixlang.state.items import (
    Appendable,
    GenItem,
    Item,
    Placeholder,
    RoleOpen,
    SelectItem,
    as_expr,
)
from radixlang.state.role_context import RoleContext
from radixlang.state.state_hints import (
    added_error,
    check_no_content,
    unknown_attribute,
)
from radixlang.state.state_values import converted
from radixlang.state.tracing import Host
from radixlang.state.variables import Captured, Constant, Named, Names, Outer
from radixlang.suggestions import shortened

if TYPE_CHECKING:
    from typing import ParamSpec

    from radixlang.state.groups import ForkGroup, Joined, Missing
    from radixlang.state.nesting import NestedProgram

    P = ParamSpec("P")
T = TypeVar("T")


class State(Named):
    """One branch of a running program.

    `s += …` appends, `s["x"]` waits for and returns a value, `s.fork(n)` branches.
    """

    __slots__ = ("_closed", "_result", "_role", "_samples")

    def __init__(
        self, host: Host, block: Block, outer: Outer | None = None, role: str | None = None
    ) -> None:
        self._host, self._recorder = host, host.recorder
        self._block = block
        self._outer = self._birth = outer
        self._names: Names | None = None
        self._role = role
        self._closed: str | None = None
        self._samples: tuple[str | None, ForkGroup] | None = None
        self._result: Any = None

    # -- appending ----------------------------------------------------------------------

    def __iadd__(self, item: Appendable) -> State:
        self._check_open()
        if isinstance(item, str):
            self._add_text(item)
        else:
            self._add_items(as_expr(item).items)
        return self

    if not TYPE_CHECKING:  # type checkers report unknown attributes themselves

        def __add__(self, other: object) -> NoReturn:
            raise added_error(self._recorder.name)

        __radd__ = __add__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(f"a state has no attribute {name!r}")
            raise unknown_attribute(self, name)

    def append(self, item: Appendable) -> State:
        """The same as `s += item`, as an expression."""
        return self.__iadd__(item)

    def _add_items(self, items: tuple[Item, ...]) -> None:
        for index, item in enumerate(items):
            if isinstance(item, GenItem) and item.n > 1:
                self._add_samples(item, items[index + 1 :])
                return
            self._add_item(item)

    def _add_item(self, item: Item) -> None:
        if isinstance(item, str):
            self._add_text(item)
        elif isinstance(item, Placeholder):
            self._record(Text((item.part,), self._recorder.location()))
        elif isinstance(item, GenItem):
            slot = self._new_slot()
            self._record(Gen(slot, item.name, item.params, item.overrides, item.constraint,
                             item.output, self._recorder.location()))  # fmt: skip
            ref = Ref(self._block.id, slot, item.name or "")
            self._bind_generation(item.name, ref, item.constraint)
        elif isinstance(item, SelectItem):
            self._add_select(item)
        elif isinstance(item, RoleOpen):
            self.role_begin(item.role)
        else:
            self.role_end(item.role)

    def _add_text(self, text: str) -> None:
        if text:
            self._record(Text(self._recorder.split(text), self._recorder.location()))

    def _add_select(self, item: SelectItem) -> None:
        slot = self._new_slot()
        if isinstance(item.options, Placeholder):
            options: tuple[Option, ...] | Arg = self._argument_of(item.options)
        else:
            options = tuple(self._option(option) for option in item.options)
        self._record(Select(slot, item.name, options, item.scorer, self._recorder.location()))
        self._bind(item.name, Ref(self._block.id, slot, item.name or ""))

    def _argument_of(self, options: Placeholder) -> Arg:
        if not isinstance(options.part, Arg):
            options._need("the options")
        return options.part

    def _option(self, option: str | Placeholder) -> str | tuple[Part, ...]:
        if isinstance(option, Placeholder):
            return (option.part,)
        parts = self._recorder.split(option)
        return option if len(parts) == 1 and isinstance(parts[0], str) else parts

    def _add_samples(self, item: GenItem, rest: tuple[Item, ...]) -> None:
        """gen with n > 1: a branch for each sample; the rest of the expression goes to each."""
        single = GenItem(item.name, item.params, item.overrides, item.constraint, item.output)
        group = self.fork(item.n)
        for child in group:
            child._add_items((single, *rest))
        if item.name is not None:
            self._join_variable(group, item.name, close=False)
        self._samples = (item.name, group)

    def _record(self, node: Node) -> None:
        if self._samples is not None:
            name = self._samples[0]
            raise ParameterError(
                f"gen({name!r}, n={len(self._samples[1])}) made a group of branches; say which "
                f"one goes on with s.choose({name!r}, index) before appending to this state"
            )
        self._host.record(self._block, node)

    def _new_slot(self) -> int:
        slot = self._block.num_slots
        self._block.num_slots = slot + 1
        return slot

    def _check_open(self) -> None:
        host = self._host
        if self._closed is not None:
            raise closed_error(host.name, self._closed)
        if isinstance(host, Run):
            error = host.loop.error_of(self._block)
            if error is not None:
                raise closed_error(host.name, "has failed") from error
            if host.program_ended:
                raise closed_error(host.name, "has finished")

    # -- roles --------------------------------------------------------------------------

    def role_begin(self, role: str) -> State:
        """Open a turn."""
        check_role(role)
        self._check_open()
        if self._role is not None:
            raise ParameterError(
                f"turn {role!r} opened inside the open turn {self._role!r}; close that one first"
            )
        self._record(RoleBegin(role, self._recorder.location()))
        self._role = role
        return self

    def role_end(self, role: str) -> State:
        """Close the open turn."""
        self._check_open()
        if self._role != role:
            is_open = f"{self._role!r} is open" if self._role else "no turn is open"
            raise ParameterError(f"turn {role!r} cannot close: {is_open}; open it first, or write "
                                 f"with s.{role}(): …")  # fmt: skip
        self._record(RoleEnd(role, self._recorder.location()))
        self._role = None
        return self

    def role(self, name: str) -> RoleContext:
        """`with s.role("tool"): …` is one turn, which is closed even if the body raises."""
        return RoleContext(self, name)

    def system(self, *content: NoReturn) -> RoleContext:
        """`with s.system(): …`"""
        check_no_content("system", content)
        return RoleContext(self, "system")

    def user(self, *content: NoReturn) -> RoleContext:
        """`with s.user(): …`"""
        check_no_content("user", content)
        return RoleContext(self, "user")

    def assistant(self, *content: NoReturn) -> RoleContext:
        """`with s.assistant(): …`"""
        check_no_content("assistant", content)
        return RoleContext(self, "assistant")

    # -- branching ----------------------------------------------------------------------

    def fork(self, n: int, *, on_error: OnError = "cancel") -> ForkGroup:
        """n branches that start here and share everything so far.

        Args:
            n: number of branches, at least 1.
            on_error: "cancel": the first failure ends the whole program. "collect": a failure
                ends only its own branch, and is in the group's `errors`.
        """
        from radixlang.state.groups import ForkGroup

        self._check_open()
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            many = (
                "; for a branch an item: s.fork(len(items))" if isinstance(n, (list, tuple)) else ""
            )
            raise ParameterError(
                f"fork needs a number of branches of at least 1, got {shortened(n)}{many}"
            )
        if on_error not in ("cancel", "collect"):
            raise ParameterError(f'on_error must be "cancel" or "collect", got {on_error!r}')
        outer = self._freeze_names()
        blocks = self._recorder.new_blocks(self._block, "fork", n)
        self._record(Fork(range(blocks[0].id, blocks[0].id + n), on_error,
                          location=self._recorder.location()))  # fmt: skip
        children = [State(self._host, block, outer, self._role) for block in blocks]
        return ForkGroup(self, children)

    def copy(self) -> State:
        """One more branch that starts here."""
        return self.fork(1)[0]

    @overload
    def join(
        self, group: ForkGroup, name: str, /, *,
        reduce: Callable[[list[Any]], object] | None = None, missing: Missing = "none",
    ) -> Joined: ...  # fmt: skip
    @overload
    def join(
        self, group: ForkGroup, first: str, second: str, /, *names: str, missing: Missing = "none"
    ) -> dict[str, Joined]: ...
    @overload
    def join(
        self, group: ForkGroup, /, *, text: Literal[True], separator: str = "\n",
        missing: Missing = "none",
    ) -> Joined: ...  # fmt: skip
    @overload
    def join(self, group: ForkGroup, /, *, missing: Missing = "none") -> dict[str, Joined]: ...
    def join(self, group: ForkGroup, /, *names: str, **options: Any) -> Any:
        """Wait for the branches of a group and collect their values or texts.

        Args:
            names: variables to bind here, each to a list aligned by branch index. None: every
                variable that a branch has bound since the fork.
            text: append the branches' texts since the fork to this branch instead.
            separator: text between the texts; a line break.
            reduce: a function of the list; the variable is bound to its result.
            missing: "none" puts None for a branch that lacks a variable or has failed; "raise"
                raises a JoinError or ParameterError.

        Returns:
            One Joined for one name or for `text`, else a dict of them by name.
        """
        from radixlang.state.groups import join

        self._check_open()
        return join(self, group, names, **options)

    def _join_variable(self, group: ForkGroup, name: str, **fields: Any) -> Joined:
        from radixlang.state.groups import Joined

        refs = tuple(child._own_ref(name) for child in group)
        slot = self._new_slot()
        children = group.children_range
        self._host.record(self._block, Join(slot, name, children, refs,
                              location=self._recorder.location(), **fields))  # fmt: skip
        ref = Ref(self._block.id, slot, name)
        joined = Joined(self, ref, refs)
        self._bind(name, joined)
        return joined

    def adopt(self, group: ForkGroup, index: int) -> State:
        """Continue where a branch of the group ended; the others end here."""
        self._check_open()
        child = group[index]
        if group.parent is not self or child._closed is not None:
            raise StateClosedError("adopt needs a branch of this state that is not joined yet")
        if any(isinstance(node, (Text, Gen, Select, RoleBegin, RoleEnd))
               for node in group.nodes_since_fork()):  # fmt: skip
            raise ParameterError("this state has gone on since the fork; adopt before appending")
        for name in child.names(own=True):
            self._bind(name, child._lookup(name))
        self._samples = None
        self._record(Adopt(child._block.id, self._recorder.location()))
        self._role = child._role
        group.close("has been joined")
        return self

    def adopt_child(self, child: State) -> State:
        """Continue where a branch of the latest fork ended, without its group."""
        from radixlang.state.groups import ForkGroup

        return self.adopt(ForkGroup(self, [child]), 0)

    def choose(self, name: str, index: int | Callable[[list[Any]], int]) -> State:
        """Continue from one sample of gen(name, n=…); `index` may be a function of the values."""
        if self._samples is None or self._samples[0] != name:
            raise self._no_samples(name)
        group = self._samples[1]
        picked = index if isinstance(index, int) else index(list(self[name]))
        return self.adopt(group, picked)

    def samples(self, name: str) -> ForkGroup:
        """The group of branches that gen(name, n=…) made."""
        if self._samples is None or self._samples[0] != name:
            raise self._no_samples(name)
        return self._samples[1]

    def _no_samples(self, name: str) -> ParameterError:
        return ParameterError(
            f"no samples of {name!r} wait for a choice here; append gen({name!r}, n=…) first"
        )

    # -- nesting ------------------------------------------------------------------------

    @overload
    def call(self, program: NestedProgram[P], /, *args: P.args, **kwargs: P.kwargs) -> State: ...
    @overload
    def call(
        self, program: NestedProgram[...], /, *args: Any, scope: Scope, **kwargs: Any
    ) -> State: ...
    def call(
        self, program: NestedProgram[...], /, *args: Any, scope: Any = "inline", **kwargs: Any
    ) -> State:
        """Run another program at this place; returns its state (`.result`, `["x"]`).

        Args:
            scope: "inline": its text stays in the prompt. "vanish": it sees the prompt, and
                its text is dropped. "isolate": it starts from an empty prompt.
        """
        child = self._open_call(program, scope)
        child._result = program.call_with(child, args, kwargs)
        return self._close_call(child, scope)

    @overload
    async def acall(
        self, program: NestedProgram[P], /, *args: P.args, **kwargs: P.kwargs
    ) -> State: ...
    @overload
    async def acall(
        self, program: NestedProgram[...], /, *args: Any, scope: Scope, **kwargs: Any
    ) -> State: ...
    async def acall(
        self, program: NestedProgram[...], /, *args: Any, scope: Any = "inline", **kwargs: Any
    ) -> State:
        """Like `call`, for an `async def` program inside another: it may await anything."""
        child = self._open_call(program, scope)
        child._result = await program.acall_with(child, args, kwargs)
        return self._close_call(child, scope)

    def _open_call(self, program: NestedProgram[...], scope: Scope) -> State:
        self._check_open()
        check_scope(scope)
        if not hasattr(program, "call_with"):
            raise ParameterError(
                f"call takes a program, got {shortened(program)}; a program is a function under "
                "@radixlang.function, or radixlang.load_template(…)"
            )
        if self._role is not None and scope != "isolate":
            raise ParameterError(f"close the turn {self._role!r} before calling a program")
        block = self._recorder.new_blocks(self._block, "call", 1)[0]
        self._record(Call(block.id, program.name, scope, self._recorder.location()))
        return State(self._host, block)

    def _close_call(self, child: State, scope: Scope) -> State:
        child._closed = "has returned"
        if scope == "inline":
            self._record(Adopt(child._block.id, self._recorder.location()))
            self._role = child._role
        elif isinstance(self._host, Run):
            self._host.flush()
            self._host.loop.close(child._block)
        return child

    # -- the rest -----------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """The return value of the program's function."""
        return self._result

    @property
    def graph(self) -> Graph:
        """The graph recorded so far."""
        return self._recorder.graph

    @overload
    def get(self, name: str) -> Any: ...
    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str, kind: Any) -> Any: ...
    def get(self, name: str, kind: Any = None) -> Any:
        """The value of a variable, converted to a type if one is given.

        Raises:
            ValueParseError: the text is not a value of that type.
        """
        return converted(self[name], kind)

    def ref(self, name: str) -> Placeholder:
        """A placeholder of the value for an f-string; `f"{s.ref('x')}"` does not wait here."""
        found = self._lookup(name)
        if isinstance(found, (Constant, Captured)):
            raise ParameterError(f"{name!r} is a value of Python; interpolate it as it is")
        return Placeholder(self._recorder, found if isinstance(found, Ref) else found.ref)

    def messages(self) -> list[Message]:
        """The turns so far, contents byte for byte; an open turn is the last."""
        return self._settled().messages()

    def __iter__(self) -> Iterator[Any]:
        raise ParameterError("a state is not iterable; iterate s.fork(n), or s.stream(name)")

    def _instead_of_appending(self) -> str:
        return "append what it has: state.text() or state['x']; branches come together by s.join"
