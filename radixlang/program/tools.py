"""Tools: functions that a model may call. Their errors go back to the model as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from radixlang.constraints.specs import Tool, ToolCall, Tools
from radixlang.constraints.typed_values import from_json, to_json
from radixlang.errors import ParameterError, ValueParseError
from radixlang.program.expressions import Expr, gen


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: `text` for the model, and the value or the error behind it."""

    call: ToolCall
    text: str
    value: Any = None
    error: BaseException | None = None


class ToolBox:
    """Functions by name, with a constraint for calls and descriptions for the prompt.

    `s += box.gen("call")` generates a valid call; `s += box.run(s["call"]).text` answers it.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]], **options: Any) -> None:
        self._functions = {function.__name__: function for function in functions}
        self.constraint = Tools(tuple(map(Tool.of, self._functions.values())), **options)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools."""
        return tuple(self._functions)

    def describe(self) -> str:
        """The tools as JSON lines: name, description, parameters."""
        return "\n".join(
            json.dumps({"name": tool.name, "description": tool.description,
                        "parameters": json.loads(tool.parameters)}, ensure_ascii=False)
            for tool in self.constraint.tools
        )  # fmt: skip

    def gen(self, name: str, **options: Any) -> Expr:
        """A generation of one valid call; its value is a ToolCall."""
        return gen(name, tools=self.constraint, **options)

    def run(self, call: ToolCall | Mapping[str, Any]) -> ToolResult:
        """Make a call. Whatever the function raises becomes text for the model."""
        wanted = call if isinstance(call, ToolCall) else self._call_of(call)
        function = self._functions.get(wanted.name)
        if function is None:
            error: BaseException = ParameterError(
                f"no tool {wanted.name!r}; there are: {', '.join(self.names)}"
            )
            return ToolResult(wanted, _error_text(error), error=error)
        try:
            value = function(**_typed_arguments(function, wanted.arguments))
        except Exception as failure:
            return ToolResult(wanted, _error_text(failure), error=failure)
        return ToolResult(wanted, _text_of(value), value)

    def _call_of(self, call: Mapping[str, Any]) -> ToolCall:
        spec = self.constraint
        return ToolCall(str(call.get(spec.name_key)), dict(call.get(spec.arguments_key) or {}))


def _typed_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(arguments)
    if not hasattr(function, "__code__"):
        return data
    typed: dict[str, Any] = from_json(function, data)
    return typed


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(to_json(value), ensure_ascii=False)


def _error_text(error: BaseException) -> str:
    kind = "ArgumentError" if isinstance(error, ValueParseError) else type(error).__name__
    return f"error: {kind}: {error}"
