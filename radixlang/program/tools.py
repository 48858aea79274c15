"""Tools: functions that a model may call. Their errors go back to the model as text."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from radixlang.constraints.json_values import arguments_from_json
from radixlang.constraints.specs import Tool, ToolCall, Tools
from radixlang.constraints.typed_values import from_json, to_json
from radixlang.constraints.types.standard_types import readable_schema
from radixlang.constraints.types.tool_schemas import tool_name
from radixlang.constraints.types.type_members import class_of
from radixlang.errors import ParameterError, ValueParseError
from radixlang.state.expressions.builders import gen
from radixlang.state.expressions.items import Expr

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from radixlang.constraints.specs import ToolsKeywords
    from radixlang.keywords import TextKeywords

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: `text` for the model, and the value or the error."""

    call: ToolCall
    text: str
    value: Any = None  # what the function returned
    error: BaseException | None = None


class ToolBox:
    """Functions by name, with a constraint for calls and descriptions for the prompt.

    `s += box.gen("call")` generates a valid call; `s += box.run(s["call"]).text` answers it. In
    an `async def` program it is `(await box.arun(await s.aget("call"))).text`.

    Raises:
        ParameterError: an item is not a function, or two share a name.
        InvalidConstraintError: an argument of a function has no JSON form.
    """

    def __init__(
        self, functions: Iterable[Callable[..., object]], **options: Unpack[ToolsKeywords]
    ) -> None:
        self._functions = _by_name(functions)
        self.constraint = Tools(tuple(map(Tool.of, self._functions.values())), **options)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._functions)

    def describe(self) -> str:
        """The tools as JSON lines: name, description, parameters."""
        return "\n".join(
            json.dumps({"name": tool.name, "description": tool.description,
                        "parameters": readable_schema(json.loads(tool.parameters))},
                       ensure_ascii=False)
            for tool in self.constraint.tools
        )  # fmt: skip

    def gen(self, name: str, **options: Unpack[TextKeywords]) -> Expr[ToolCall]:
        """A generation of one valid call; its value is a ToolCall."""
        return gen(name, tools=self.constraint, **options)

    def run(self, call: ToolCall | Mapping[str, object]) -> ToolResult:
        """Make a call. An exception of the function becomes text for the model.

        An `async def` function runs to its end on a new event loop.

        Raises:
            ParameterError: the function is `async def` and this thread already runs a loop: use
                `await box.arun(call)`.
        """
        wanted = self._call_of(call)
        try:
            value = self._started(wanted)()
            if inspect.isawaitable(value):
                value = _finished(value, wanted.name)
            return ToolResult(wanted, _text_of(value), value)
        except _LoopRunningError as error:
            raise ParameterError(str(error)) from None
        except Exception as failure:
            return ToolResult(wanted, _error_text(failure), error=failure)

    async def arun(self, call: ToolCall | Mapping[str, object]) -> ToolResult:
        """Make a call from an event loop: `async def` is awaited, others run on a thread."""
        wanted = self._call_of(call)
        try:
            start = self._started(wanted)
            is_async = inspect.iscoroutinefunction(self._functions[wanted.name])
            value = start() if is_async else await asyncio.to_thread(start)
            if inspect.isawaitable(value):
                value = await value
            return ToolResult(wanted, _text_of(value), value)
        except Exception as failure:
            return ToolResult(wanted, _error_text(failure), error=failure)

    def _started(self, call: ToolCall) -> Callable[[], object]:
        """The call as a function without arguments; its own are converted to their types."""
        function = self._functions.get(call.name)
        if function is None:
            raise ParameterError(f"no tool {call.name!r}; there are: {', '.join(self.names)}")
        if isinstance(class_of(function), type):
            return lambda: from_json(function, dict(call.arguments))
        arguments = arguments_from_json(function, dict(call.arguments))
        return lambda: function(**arguments)

    def _call_of(self, call: ToolCall | Mapping[str, object]) -> ToolCall:
        if isinstance(call, ToolCall):
            return call
        spec = self.constraint
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get(spec.name_key), str):
            raise ParameterError(
                f"a call is a ToolCall or a dict with {spec.name_key!r} and "
                f"{spec.arguments_key!r}, got {call!r:.80}"
            )
        return ToolCall(inner[spec.name_key], _arguments(inner.get(spec.arguments_key) or {}))


def _arguments(given: object) -> dict[str, object]:
    """Arguments given as a dict, or as a JSON string, as chat interfaces send them."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ParameterError(
            f"the arguments of a call are no JSON: {error}: {given!r:.80}"
        ) from None
    if not isinstance(found, Mapping):
        raise ParameterError(f"the arguments of a call are an object, got {found!r:.80}")
    return dict(found)


class _LoopRunningError(Exception):
    """An `async def` tool was called on a thread that already runs an event loop."""


def _by_name(functions: Iterable[Callable[..., object]]) -> dict[str, Callable[..., object]]:
    if callable(functions) or isinstance(functions, (str, Mapping)):
        raise ParameterError(f"a ToolBox takes a list of functions, got {functions!r:.80}")
    found: dict[str, Callable[..., object]] = {}
    for function in functions:
        if not callable(function):
            raise ParameterError(
                f"a ToolBox runs functions, got {function!r:.80}; for tools that are run elsewhere "
                "use gen(tools=[…])"
            )
        name = tool_name(function)
        if name in found:
            raise ParameterError(f"two tools are called {name!r}; give one of them another name")
        found[name] = function
    return found


def _finished(value: Awaitable[T], name: str) -> T:
    """The result of an awaitable, on a new event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(value))
    if inspect.iscoroutine(value):
        value.close()
    raise _LoopRunningError(
        f"the tool {name} is async def and an event loop runs in this thread: "
        "await box.arun(call) in an async def program"
    )


async def _awaited(value: Awaitable[T]) -> T:
    return await value


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(to_json(value), ensure_ascii=False)


def _error_text(error: BaseException) -> str:
    kind = "ArgumentError" if isinstance(error, ValueParseError) else type(error).__name__
    return f"error: {kind}: {error}"
