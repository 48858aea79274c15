"""The state of a program, to which its function appends, from which it reads, which it forks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from radixlang.errors import ParameterError, ProgramError, StateClosedError, refuse_pickling
from radixlang.execution.failures import closed_error
from radixlang.execution.pieces import Choice
from radixlang.execution.run import Run
from radixlang.graph.nodes import (
    Block,
    Graph,
    OnError,
    Ref,
    Scope,
)
from radixlang.json_types import TypeForm
from radixlang.protocol import (
    AdapterUse,
    Completion,
    Message,
    NextToken,
    Usage,
    adapter_use,
)
from radixlang.state.expressions.items import Appendable, Expr, Placeholder, as_expr
from radixlang.state.expressions.thought import thought_name
from radixlang.state.reading.bound_values import Captured, Constant, Joined
from radixlang.state.reading.reader import Reader, converted
from radixlang.state.reading.variables import Outer, Variables
from radixlang.state.recording import branching
from radixlang.state.recording.adapting import adapted
from radixlang.state.recording.appending import append_items, append_text
from radixlang.state.recording.groups import ForkGroup, Missing, join
from radixlang.state.recording.nesting import NestedProgram, close_call, open_call
from radixlang.state.recording.roles import RoleContext, begin_role, end_role
from radixlang.state.state_hints import added_error, check_no_content, unknown_attribute
from radixlang.state.tracing import Host

if TYPE_CHECKING:
    from typing import ParamSpec

    from radixlang.rollouts.token_tree import TokenTree
    from radixlang.views.live import LiveView

    P = ParamSpec("P")
T = TypeVar("T")


# Any below is a value of the program: of the type of its gen, its Python or its result, which no
# checker knows from a name. `s.get(name, kind)` says it.


class Returned:
    """What a program's function returned, shared by the states that look at it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None  # of the type that the function returns


class State:
    """One branch of a running program.

    `s += …` appends, `s["x"]` waits for and returns a value, `s.fork(n)` branches.
    """

    __slots__ = ("_adapter", "_block", "_closed", "_host", "_reader", "_recorder", "_refusal",
                 "_returned", "_role", "_samples", "_variables")  # fmt: skip

    def __init__(
        self, host: Host, block: Block, outer: Outer | None = None, role: str | None = None
    ) -> None:
        self._host, self._recorder, self._block = host, host.recorder, block
        self._variables = Variables(host, outer)
        self._reader = Reader(host, block, self._variables)
        self._role = role
        self._adapter: AdapterUse | None = None
        self._closed: str | None = None
        self._refusal: str | None = None  # why appending here is never allowed
        self._samples: tuple[str | None, ForkGroup] | None = None
        self._returned = Returned()

    # -- appending ----------------------------------------------------------------------

    def __iadd__(self, item: Appendable) -> State:
        self._check_goes_on()
        if isinstance(item, str):
            append_text(self, item)
        else:
            append_items(self, as_expr(item).items)
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

    def _check_goes_on(self) -> None:
        """Raise an error unless nodes may be appended here now."""
        self._check_open()
        if self._samples is not None:
            name = self._samples[0]
            raise ParameterError(
                f"gen({name!r}, n={len(self._samples[1])}) made a group of branches; say which "
                f"one goes on with s.choose({name!r}, index) before appending to this state"
            )

    def _new_slot(self) -> int:
        slot = self._block.num_slots
        self._block.num_slots = slot + 1
        return slot

    def _check_open(self) -> None:
        host = self._host
        if self._refusal is not None:
            raise StateClosedError(self._refusal)
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
        return begin_role(self, role)

    def role_end(self, role: str) -> State:
        """Close the open turn."""
        return end_role(self, role)

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

    # -- adapters -----------------------------------------------------------------------

    def adapter(
        self, name: str | AdapterUse, *, scale: float | None = None,
        layers: Iterable[int] | None = None,
    ) -> AbstractContextManager[State]:  # fmt: skip
        """`with s.adapter("checker"): …`: what is appended in the block is computed with an adapter
        of the runtime. Everything before keeps its keys and values, and is not computed again.

        Args:
            name: under which `Runtime.load_adapter` has it.
            scale: factor on what it adds; 0 is the model without it.
            layers: indices of the layers in which it acts, all by default.
        """
        return adapted(self, adapter_use(name, scale, layers))

    # -- branching ----------------------------------------------------------------------

    def fork(self, n: int, *, on_error: OnError = "cancel") -> ForkGroup:
        """n branches that start here and share everything so far.

        Args:
            n: number of branches, at least 1.
            on_error: "cancel": the first failure ends the whole program. "collect": a failure
                ends only its own branch, and is in the group's `errors`.
        """
        return branching.fork(self, n, on_error)

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
    def join(self, group: ForkGroup, /, *names: str, **options: Any) -> Joined | dict[str, Joined]:
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
        self._check_open()
        return join(self, group, names, **options)

    def adopt(self, group: ForkGroup, index: int) -> State:
        """Continue where a branch of the group ended; the others end here."""
        return branching.adopt(self, group, index)

    def adopt_child(self, child: State) -> State:
        """Continue where a branch of the latest fork ended, without its group."""
        return self.adopt(ForkGroup(self, [child]), 0)

    def choose(self, name: str, index: int | Callable[[list[Any]], int]) -> State:
        """Continue from one sample of gen(name, n=…); `index` may be a function of the values."""
        return branching.choose(self, name, index)

    def samples(self, name: str) -> ForkGroup:
        """The group of branches that gen(name, n=…) made."""
        return branching.samples_of(self, name)

    # -- nesting ------------------------------------------------------------------------

    @overload
    def call(self, program: NestedProgram[P], /, *args: P.args, **kwargs: P.kwargs) -> State: ...
    @overload
    def call(
        self, program: NestedProgram[...], /, *args: object, scope: Scope, **kwargs: object
    ) -> State: ...
    def call(
        self, program: NestedProgram[...], /, *args: Any, scope: Any = "inline", **kwargs: Any
    ) -> State:
        """Run another program at this place; returns its state (`.result`, `["x"]`).

        Args:
            scope: "inline": its text stays in the prompt. "vanish": it sees the prompt, and
                its text is dropped. "isolate": it starts from an empty prompt.
        """
        child = State(self._host, open_call(self, program, scope))
        child._adapter = self._adapter
        child._returned.value = program.call_with(child, args, kwargs)
        return close_call(self, child, scope)

    @overload
    async def acall(
        self, program: NestedProgram[P], /, *args: P.args, **kwargs: P.kwargs
    ) -> State: ...
    @overload
    async def acall(
        self, program: NestedProgram[...], /, *args: object, scope: Scope, **kwargs: object
    ) -> State: ...
    async def acall(
        self, program: NestedProgram[...], /, *args: Any, scope: Any = "inline", **kwargs: Any
    ) -> State:
        """Like `call`, for an `async def` program inside another: it may await anything."""
        child = State(self._host, open_call(self, program, scope))
        child._adapter = self._adapter
        child._returned.value = await program.acall_with(child, args, kwargs)
        return close_call(self, child, scope)

    # -- variables ----------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The value of a variable; waits for it.

        Its type is that of its gen (`gen("age", int)`: an int), which a checker cannot know from
        a name; `s.get("age", int)` is an int to a checker too.

        Raises:
            UnknownVariableError: there is no such variable (also a KeyError).
            NeedsValueError: the value is not there yet, and waiting would stop the event loop on
                which this `async def` program runs; use `await s.aget(name)`.
            ProgramError: the first error of this program.
        """
        return self._reader.value(name)

    def __setitem__(self, name: str, value: object) -> None:
        """Bind a Python value to a variable of this branch."""
        self._check_open()
        if isinstance(value, Expr):
            raise ParameterError(
                f"s[{name!r}] = … binds a value of Python, and binds nothing that is generated; "
                f"write s += gen({name!r}, …), then read s[{name!r}]"
            )
        self._variables.bind(name, Constant(value))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def names(self, own: bool = False) -> list[str]:
        """Variables visible here in order of binding; `own`: only those bound since the fork."""
        return self._reader.variables.names(own)

    @overload
    def get(self, name: str) -> Any: ...
    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str, kind: TypeForm) -> Any: ...
    def get(self, name: str, kind: TypeForm = None) -> Any:
        """The value of a variable, converted to a type if one is given.

        Raises:
            ValueParseError: the text is not a value of that type.
        """
        return converted(self[name], kind)

    @overload
    async def aget(self, name: str) -> Any: ...
    @overload
    async def aget(self, name: str, kind: type[T]) -> T: ...
    @overload
    async def aget(self, name: str, kind: TypeForm) -> Any: ...
    async def aget(self, name: str, kind: TypeForm = None) -> Any:
        """Like `s[name]`, or `s.get(name, kind)`, without blocking the event loop."""
        return converted(await self._reader.value_async(name), kind)

    def values(self) -> dict[str, Any]:
        """Every variable and its value; waits for all of them."""
        return self._reader.values()

    def ref(self, name: str) -> Placeholder:
        """A placeholder of the value for an f-string; `f"{s.ref('x')}"` does not wait here."""
        found = self._reader.variables.lookup(name)
        if isinstance(found, (Constant, Captured)):
            raise ParameterError(f"{name!r} is a value of Python; interpolate it as it is")
        return Placeholder(self._recorder, found if isinstance(found, Ref) else found.ref)

    # -- reading ------------------------------------------------------------------------

    def text(self) -> str:
        """The whole prompt with everything generated so far, markup of turns included."""
        return self._reader.settled().text()

    async def atext(self) -> str:
        """Like `text()`, without blocking the event loop."""
        return await self._reader.text_async()

    def messages(self) -> list[Message]:
        """The turns so far, contents byte for byte; an open turn is the last."""
        return self._reader.settled().messages()

    def tokens(self) -> tuple[int, ...]:
        """Token ids of the prompt so far, pending text tokenised; only while the program runs."""
        return self._reader.tokens()

    def thought(self, name: str) -> str | Sequence[str | None]:
        """The text of the thought before gen(name, think=…); of samples, the list of them.

        It is the variable `name + ".thought"`, which `stream`, `completion`, `usage` and `aget`
        take as any other.

        Raises:
            UnknownVariableError: that gen has no thought.
        """
        found: str | Sequence[str | None] = self[thought_name(name)]
        return found

    def next_token(
        self, *, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> NextToken:
        """The model's distribution of the token after this prompt, likeliest first.

        Nothing of the state changes and no token is generated. For all branches of a fork at once:
        `group.next_token(…)`.

        Args:
            among: only these tokens, by id or by a text that is one token, such as " yes".
            top: the likeliest so many; None: all of `among`, or 20 of the vocabulary.

        Raises:
            ParameterError: a text is not one token, or the backend has no logits.
        """
        return self._reader.next_token(among, top).result()

    async def anext_token(
        self, *, among: Sequence[str | int] | None = None, top: int | None = None
    ) -> NextToken:
        """Like `next_token`, without blocking the event loop."""
        return await self._reader.next_token_async(among, top)

    def stream(self, name: str) -> Iterator[str]:
        """Pieces of a variable's text as they arrive; raises the error that ends it, if any."""
        return self._reader.stream(name)

    def astream(self, name: str) -> AsyncIterator[str]:
        """Like `stream`, for a caller on an event loop."""
        return self._reader.stream_async(name)

    def stop(self, name: str) -> None:
        """End the generation of a variable here and keep its text; the program goes on after it.

        Its finish reason is "stopped"; one that has not begun is empty, one that has ended does not
        change. For joined variables and samples, every branch's generation ends. May be called from
        any thread. Under a constraint it acts as if `max_tokens` had been reached.

        Raises:
            ParameterError: the variable is a Python value.
        """
        self._reader.stop(name)

    def completion(self, name: str) -> Completion:
        """The Completion behind a variable: tokens, log-probabilities, usage."""
        return self._reader.completion(name)

    def choice(self, name: str) -> Choice:
        """The outcome of a select: scores, distribution and ties."""
        return self._reader.choice(name)

    def tree(self) -> TokenTree:
        """The tokens of this whole run as a tree: given, forced and sampled ones, with
        log-probabilities if the gens asked for them. Waits for the run; see `TokenTree.flatten`.

        Raises:
            ParameterError: the backend does not tell the tokens of its prompts.
        """
        from radixlang.state.reading.run_tokens import tree_of

        self.text()
        return tree_of(self._run())

    def usage(self, name: str | None = None) -> Usage:
        """Tokens and times of one generation, or their sums over the program so far."""
        return self._reader.usage(name)

    # -- the run ------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """The return value of the program's function."""
        self._reader.await_program()
        return self._returned.value

    @property
    def graph(self) -> Graph:
        """The graph recorded so far."""
        return self._recorder.graph

    @property
    def error(self) -> ProgramError | None:
        """The first error of this branch or of the run, or None."""
        return self._run().loop.error_of(self._block)

    @property
    def seed(self) -> int:
        """The seed of the run; `run(seed=…)` with it gives the same answers."""
        return self._run().seed

    def cancel(self) -> None:
        """End this branch and those below it (the root: the whole program), and free their KV."""
        self._run().cancel_branch(self._block)

    def _run(self) -> Run:
        return self._reader.run()

    # -- looking at it ------------------------------------------------------------------

    def __repr__(self) -> str:
        from radixlang.state.reading import state_views

        return state_views.line(self._reader)

    def _repr_html_(self) -> str:
        from radixlang.state.reading import state_views

        return state_views.cell(self._run())

    def show(self, *, color: bool | None = None) -> str:
        """The tree of this run for a terminal; tokens coloured cached, forced, sampled."""
        from radixlang.state.reading import state_views

        return state_views.tree(self._run(), color)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The current view of this run, which may have failed or still run, as one HTML page.

        Args:
            path: a file to write the page to, as UTF-8.
        """
        from radixlang.state.reading import state_views

        return state_views.page(self._run(), path)

    def live(
        self, path: str | os.PathLike[str] | None = None, *, every_s: float = 1.0
    ) -> LiveView | None:
        """Show this run while it goes on, and once more when it has ended; returns at once.

        Args:
            path: the file for the page, which reloads itself in a browser. None: the notebook's
                cell that runs this.
            every_s: seconds between two drawings; more if drawing takes long.

        `s.live("page.html")` is a line of a program; `radixlang.on_run(State.live, when="start")`
        shows every run in its cell. While a program is traced it does nothing.
        """
        from radixlang.state.reading import state_views

        is_run = isinstance(self._host, Run)
        return state_views.live(self._run(), path, every_s) if is_run else None

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            f"a state of program {self._host.name!r}",
            "pickle state.values() and state.text(), or radixlang.take_checkpoint(state)",
        )

    def __iter__(self) -> NoReturn:
        raise ParameterError("a state is not iterable; iterate s.fork(n), or s.stream(name)")

    def _instead_of_appending(self) -> str:
        return "append what it has: state.text() or state['x']; branches come together by s.join"
