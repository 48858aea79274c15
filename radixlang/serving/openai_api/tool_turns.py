"""Requests with tools: what the model is told, what it must write, and what it has called."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from radixlang.constraints.specs import Constraint, JsonSchema, Tool, ToolCall, Tools
from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.protocol import Markup
from radixlang.serving.openai_api.call_format import CallFormat, call_format_of
from radixlang.serving.openai_api.prompts import Pieces, content_text, role_of
from radixlang.serving.openai_api.schemas import ChatRequest
from radixlang.serving.served_backend import ServedBackend

_SENTINEL = re.compile(r"RadixlangContent(\d+)End")
_ESCAPED = set("\"\\\n\t\r<>&'") | set(map(chr, range(0x7F, 0x100)))


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How a request with tools is answered.

    `forced` is text that the answer begins with, of which the model has no choice, and
    `constraint` what follows it; without one the model may also answer in words.
    """

    format: CallFormat
    forced: str = ""
    constraint: Constraint | None = None
    named: str = ""  # the one tool, whose name is in `forced` already

    def split(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text before the calls, and the calls."""
        if self.constraint is None:
            return self.format.split(text)
        if self.named:
            return "", [ToolCall(self.named, json.loads(text))]
        call = json.loads(text)
        return "", [ToolCall(call[self.format.name_key], call[self.format.arguments_key])]


def tool_plan(body: ChatRequest, backend: ServedBackend) -> ToolPlan | None:
    """The plan of a request; None if no tool may be called.

    Raises:
        ParameterError: the tools or the choice are not understood.
    """
    tools = [Tool.of(tool) for tool in body.tools or ()]
    if not tools or body.tool_choice == "none":
        return None
    found = call_format_of(backend)
    choice = body.tool_choice or "auto"
    if choice == "auto":
        return ToolPlan(found)
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        tools = [tool for tool in tools if tool.name == name]
        if not tools:
            raise ParameterError(f"tool_choice names {name!r}, which is not among the tools")
    elif choice != "required":
        raise ParameterError(
            f"tool_choice is 'none', 'auto', 'required' or names a function, got {choice!r}"
        )
    return _forced(found, tools)


def _forced(found: CallFormat, tools: list[Tool]) -> ToolPlan:
    if found.between is None:
        spec = Tools(tuple(tools), name_key=found.name_key, arguments_key=found.arguments_key)
        return ToolPlan(found, found.begin, spec)
    if len(tools) > 1:
        raise ParameterError(
            "tool_choice 'required' with several tools is not served for this model, which writes "
            "the name before the arguments; name one function"
        )
    (tool,) = tools
    schema = JsonSchema.of(tool.parameters)
    return ToolPlan(found, found.begin + tool.name + found.between, schema, tool.name)


def has_tool_turns(body: ChatRequest) -> bool:
    """Whether the conversation needs the template's own form for tools."""
    return bool(body.tools) or any(turn.tool_calls or turn.tool_call_id for turn in body.messages)


def tool_pieces(body: ChatRequest, backend: ServedBackend, plan: ToolPlan | None) -> Pieces:
    """The pieces of a conversation with tools: contents are data, the rest is the template's.

    Raises:
        ParameterError: the template refuses it, or tools or calls hold special tokens.
    """
    if body.continue_final_message:
        raise ParameterError("continue_final_message is not served together with tools")
    tools = body.tools if body.tool_choice != "none" else None
    rows, contents = _rows(body)
    for text in _texts([tools, [row.get("tool_calls") for row in rows]]):
        special = next((each for each in backend.special_tokens if each in text), None)
        if special is not None:
            raise ParameterError(f"a tool or a call holds the special token {special!r}")
    adds = body.add_generation_prompt

    def render(rows: Sequence[JsonBody]) -> str:
        return backend.render_conversation(rows, tools=tools or (), add_generation_prompt=adds)

    text = render(rows)
    parts = _SENTINEL.split(text)
    if sorted(set(map(int, parts[1::2]))) != sorted(contents):
        raise ParameterError(f"the chat template of {backend.model_name} drops one of the messages")
    pieces: Pieces = [Markup(parts[0])]
    for number, after in zip(map(int, parts[1::2]), parts[2::2], strict=True):
        content = contents[number]
        if _ESCAPED & set(content):
            content = _as_written(rows, number, content, text, render)
        pieces += [content, Markup(after)]
    if plan is not None and plan.forced:
        pieces.append(Markup(plan.forced))
    return [piece for piece in pieces if piece]


def _rows(body: ChatRequest) -> tuple[list[JsonBody], dict[int, str]]:
    """The messages with sentinels for their contents, and the contents."""
    rows: list[JsonBody] = []
    contents: dict[int, str] = {}
    for number, turn in enumerate(body.messages):
        content = content_text(turn)
        if content:
            contents[number] = content
        row: JsonBody = {
            "role": role_of(turn), "content": f"RadixlangContent{number}End" if content else ""
        }  # fmt: skip
        if turn.tool_calls:
            row["tool_calls"] = [_call_row(call) for call in turn.tool_calls]
        for name in ("tool_call_id", "name"):
            if (value := getattr(turn, name)) is not None:
                row[name] = value
        rows.append(row)
    return rows, contents


def _call_row(call: JsonBody) -> JsonBody:
    """A call with its arguments as an object, as templates want it."""
    try:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (TypeError, KeyError, ValueError):
        raise ParameterError(
            f"a tool call needs function.name and function.arguments, got {call!r:.120}"
        ) from None
    return {"id": str(call.get("id", "")), "type": "function",
            "function": {"name": name, "arguments": arguments}}  # fmt: skip


def _as_written(rows: Any, number: int, content: str, text: str, render: Any) -> str:
    """The content as the template writes it: in JSON, escaped or, mostly, unchanged."""
    before, _, after = text.partition(f"RadixlangContent{number}End")
    whole = render([{**row, "content": content} if i == number else row
                    for i, row in enumerate(rows)])  # fmt: skip
    is_between = whole.startswith(before) and whole[len(before) :].endswith(after)
    return whole[len(before) : len(whole) - len(after)] if is_between else content


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def calls_body(calls: Sequence[ToolCall]) -> list[JsonBody]:
    """Calls in the form of a message; ids have nine letters, as one family's templates want."""
    return [
        {
            "id": secrets.token_hex(5)[:9], "type": "function",
            "function": {"name": call.name,
                         "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in calls
    ]  # fmt: skip


class CallStream:
    """One streamed answer: passes text on as long as it cannot be a call."""

    def __init__(self, plan: ToolPlan) -> None:
        self._plan = plan
        self._text = ""
        self._num_sent = 0

    def push(self, text: str) -> str:
        """Text that is no call."""
        self._text += text
        if self._plan.constraint is not None:
            return ""
        free = max(self._num_sent, self._plan.format.num_free(self._text))
        sent, self._num_sent = self._text[self._num_sent : free], free
        return sent

    def finish(self) -> tuple[str, list[ToolCall]]:
        """The rest of the text, and the calls."""
        content, calls = split_safely(self._plan, self._text)
        return content[self._num_sent :], calls


def split_safely(plan: ToolPlan, text: str) -> tuple[str, list[ToolCall]]:
    """Text and calls; a call that was cut off is text."""
    try:
        return plan.split(text)
    except (ValueError, KeyError, TypeError):
        return text, []
