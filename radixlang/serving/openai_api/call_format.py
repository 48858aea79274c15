"""How a model writes calls of tools: read off its own chat template, and read back from its text.

The template renders a conversation with one call whose name and arguments are known words; what
stands around them is the format. So Hermes' and Qwen's <tool_call>, Llama's bare object with
"parameters", Mistral's [TOOL_CALLS] list and others need no table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from radixlang.constraints.specs import ToolCall
from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.serving.served_backend import ServedBackend

_NAME, _KEY, _VALUE, _TEXT = "radixlangname", "radixlangkey", "radixlangvalue", "radixlangtext"
_ARGUMENTS = {_KEY: _VALUE}
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME, "description": "-",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}  # fmt: skip
_CALL = {"id": "abcdefghi", "type": "function",
         "function": {"name": _NAME, "arguments": _ARGUMENTS}}  # fmt: skip
_PYTHON_TAG = "<|python_tag|>"  # Llama writes it before a call, and its template does not


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The text of one call: begin, then either an object with `name_key` and `arguments_key`, or
    (`between` is not None) the name, `between` and the arguments; then end."""

    begin: str
    end: str
    name_key: str = "name"
    arguments_key: str = "arguments"
    between: str | None = None

    @property
    def marker(self) -> str:
        """What begins the calls of a turn; empty if the object itself does."""
        return self.begin.rstrip().removesuffix("[").strip()

    def split(self, text: str) -> tuple[str, list[ToolCall]]:
        """The text before the calls, and the calls; all of it and none if it is no call."""
        start = self.start_of(text)
        calls = [] if start is None else self._read(text[start:])
        if not calls or start is None:
            return text, []
        return text[:start].rstrip(), calls

    def start_of(self, text: str) -> int | None:
        """Where the calls begin, None if there is none."""
        if self.marker:
            at = text.find(self.marker)
            return at if at >= 0 else None
        bare = text.lstrip()
        is_call = bare.startswith(("{", _PYTHON_TAG))
        return len(text) - len(bare) if is_call else None

    def num_free(self, text: str) -> int:
        """Characters at the beginning of an unfinished text that belong to no call."""
        start = self.start_of(text)
        if start is not None:
            return start
        if not self.marker:
            return len(text) if text.strip() and not _PYTHON_TAG.startswith(text.strip()) else 0
        for length in range(min(len(self.marker) - 1, len(text)), 0, -1):
            if text.endswith(self.marker[:length]):
                return len(text) - length
        return len(text)

    def _read(self, text: str) -> list[ToolCall]:
        """All calls of a text; none if a part of it is not one."""
        found = []
        try:
            for name, arguments in self._pairs(text):
                if not isinstance(name, str) or not isinstance(arguments, dict):
                    return []
                found.append(ToolCall(name, arguments))
        except ValueError:
            return []
        return found

    def _pairs(self, text: str) -> Iterator[tuple[Any, Any]]:
        filler = "|".join(
            re.escape(each)
            for each in sorted({self.marker, self.end.strip(), _PYTHON_TAG, "[", "]", ",", ";"},
                               key=len, reverse=True) if each
        )  # fmt: skip
        skip = re.compile(rf"(?:\s|{filler})*")
        at = _end(skip, text, 0)
        while at < len(text):
            if self.between is not None:
                named = re.compile(rf"([\w.-]+)\s*{re.escape(self.between.strip())}\s*")
                match = named.match(text, at)
                if match is None:
                    raise ValueError(text[at:])
                arguments, at = json.JSONDecoder().raw_decode(text, match.end())
                yield match[1], arguments
            else:
                call, at = json.JSONDecoder().raw_decode(text, at)
                if not isinstance(call, dict):
                    raise ValueError(text[at:])
                yield call.get(self.name_key), call.get(self.arguments_key)
            at = _end(skip, text, at)


def _end(skip: re.Pattern[str], text: str, at: int) -> int:
    match = skip.match(text, at)
    return at if match is None else match.end()


def call_format_of(backend: ServedBackend) -> CallFormat:
    """The format of a backend's chat template.

    Raises:
        ParameterError: the template writes no tools or calls, or in a form that is not known.
    """
    asked: list[JsonBody] = [{"role": "user", "content": _TEXT}]
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
    told = backend.render_conversation(asked, tools=[_PROBE_TOOL], add_generation_prompt=True)
    text = backend.render_conversation(called, tools=[_PROBE_TOOL], add_generation_prompt=False)
    tail = text[_num_common(told, text) :]
    if _NAME not in told or _NAME not in tail:
        raise ParameterError(
            f"the chat template of {backend.model_name} writes no tools; use a model that was "
            "trained to call tools, or describe them in a message and ask for response_format"
        )
    found = _with_object(tail) or _with_name(tail)
    if found is None:
        raise ParameterError(
            f"the chat template of {backend.model_name} writes calls of tools in a form that is "
            "not known here"
        )
    return CallFormat(found.begin, _within_turn(found.end, asked, backend), found.name_key,
                      found.arguments_key, found.between)  # fmt: skip


def _num_common(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))  # fmt: skip


def _with_object(tail: str) -> CallFormat | None:
    """A format whose call is an object around name and arguments."""
    at = tail.find(_NAME)
    while (at := tail.rfind("{", 0, at)) >= 0:
        try:
            call, end = json.JSONDecoder().raw_decode(tail, at)
        except ValueError:
            continue
        keys = {_plain(value): key for key, value in call.items()}
        name, arguments = keys.get(_NAME), keys.get(json.dumps(_ARGUMENTS))
        if name is not None and arguments is not None:
            return CallFormat(tail[:at], tail[end:], name, arguments)
    return None


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _with_name(tail: str) -> CallFormat | None:
    """A format that writes the name, and then the arguments as an object."""
    at = tail.find(_NAME)
    opening = tail.find("{", at)
    try:
        arguments, end = json.JSONDecoder().raw_decode(tail, opening)
    except ValueError:
        return None
    if opening < 0 or arguments != _ARGUMENTS:
        return None
    return CallFormat(tail[:at], tail[end:], between=tail[at + len(_NAME) : opening])


def _within_turn(end: str, asked: list[JsonBody], backend: ServedBackend) -> str:
    """The end of a call without the end of its turn, which a turn of text has too."""
    plain = [*asked, {"role": "assistant", "content": _VALUE}]
    text = backend.render_conversation(plain, tools=[_PROBE_TOOL], add_generation_prompt=False)
    after = text.rpartition(_VALUE)[2].strip()
    return end.partition(after)[0] if after else end
