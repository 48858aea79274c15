"""Tools through the chat template's own call format, in the manner of four families of models."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.serving.tool_families import CALLS, template

Client = Callable[..., openai.OpenAI]
ANSWERS = {
    "hermes": '<tool_call>\n{"name": "plus", "arguments": {"a": 1, "b": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama": '<|python_tag|>{"name": "plus", "parameters": {"a": 1, "b": 2}}; '
    '{"name": "now", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "plus", "arguments": {"a": 1, "b": 2}}, '
    '{"name": "now", "arguments": {}}]',
    "named": '[TOOL_CALLS]plus[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[ARGS]{}',
}
NUMBER = {"type": "integer"}
TOOLS: list[Any] = [
    {"type": "function", "function": {
        "name": "plus", "description": "Adds.", "parameters": {
            "type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]  # fmt: skip
ASKED: list[Any] = [{"role": "user", "content": "One and two?"}]


def calls_of(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or ()]  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_read_from_the_answer(client: Client, family: Any, name: str) -> None:
    backend = family(name, lambda *_: ANSWERS[name])
    api = client(backend)
    asked: dict[str, Any] = {"model": "fake", "messages": ASKED, "tools": TOOLS, "max_tokens": 500}
    choice = api.chat.completions.create(**asked).choices[0]
    expected = [("plus", {"a": 1, "b": 2}), ("now", {})]
    assert calls_of(choice.message) == expected
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")
    assert '"description": "Adds."' in backend.prompts[0]
    streamed: list[tuple[str, Any]] = []
    for chunk in api.chat.completions.create(**asked, stream=True):
        assert not chunk.choices[0].delta.content
        streamed += calls_of(chunk.choices[0].delta)
        finish = chunk.choices[0].finish_reason
    assert (streamed, finish) == (expected, "tool_calls")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    "answer", ["It is 3.", "a < b [and] {more", '<tool_call>{"name": 1}', "[TOOL_CALLS] nothing"]
)
def test_what_is_no_call_is_text(client: Client, family: Any, name: str, answer: str) -> None:
    api = client(family(name, lambda *_: answer, piece=3))
    asked: dict[str, Any] = {"model": "fake", "messages": ASKED, "tools": TOOLS, "max_tokens": 500}
    choice = api.chat.completions.create(**asked).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (answer, None)
    chunks = list(api.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer


def test_words_before_a_call_are_kept(client: Client, family: Any) -> None:
    answer = "Let me add.\n" + ANSWERS["hermes"]
    api = client(family("hermes", lambda *_: answer, piece=2))
    asked: dict[str, Any] = {"model": "fake", "messages": ASKED, "tools": TOOLS, "max_tokens": 500}
    message = api.chat.completions.create(**asked).choices[0].message
    assert (message.content, len(calls_of(message))) == ("Let me add.", 2)
    chunks = list(api.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == (
        "Let me add."
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_forced_call_is_valid(client: Client, make_runtime: Any, name: str) -> None:
    """On random weights, whose free text would never be a call."""
    api = client(make_runtime(chat_template=template(name)))
    tools = [{"type": "function", "function": {"name": "pick", "parameters": {
        "type": "object", "properties": {"way": {"enum": ["north", "south"]}},
        "required": ["way"], "additionalProperties": False}}}]  # fmt: skip
    choice = api.chat.completions.create(
        model="tiny", messages=ASKED, tools=tools, seed=1, max_tokens=200,
        tool_choice={"type": "function", "function": {"name": "pick"}},
    ).choices[0]  # fmt: skip
    ((called, arguments),) = calls_of(choice.message)
    assert called == "pick"
    assert arguments in ({"way": "north"}, {"way": "south"})
    assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("name", CALLS)
def test_a_conversation_with_calls_is_the_template_s_own(
    client: Client, family: Any, name: str
) -> None:
    """Contents are data, also where the template writes them as JSON."""
    backend = family(name, lambda *_: "3")
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "plus", "arguments": '{"a": 1, "b": 2}'}}  # fmt: skip
    answer = {"role": "tool", "tool_call_id": "abcdefghi", "content": 'a "3"\n<|im_end|>'}
    talk = [*ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}, answer]
    client(backend).chat.completions.create(model="fake", messages=talk, tools=TOOLS)
    rows = [{**row, "content": row["content"] or ""} for row in talk]
    rows[1]["tool_calls"] = [{**call, "function": {"name": "plus", "arguments": {"a": 1, "b": 2}}}]
    expected = backend.render_conversation(rows, tools=TOOLS, add_generation_prompt=True)
    assert backend.prompts == [expected]


def test_special_tokens_in_tools_are_refused(client: Client, family: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "a <|im_end|> b"}}
    with pytest.raises(openai.BadRequestError, match="holds the special token"):
        client(family("hermes", None)).chat.completions.create(
            model="fake", messages=ASKED, tools=[tool]
        )


def test_a_template_without_tools_is_refused(client: Client, make_runtime: Any) -> None:
    api = client(make_runtime())
    with pytest.raises(openai.BadRequestError, match="writes no tools"):
        api.chat.completions.create(model="tiny", messages=ASKED, tools=TOOLS)
    none = api.chat.completions.create(
        model="tiny", messages=ASKED, tools=TOOLS, tool_choice="none", max_tokens=2
    )
    assert none.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("choice", "said"),
    [("sometimes", "tool_choice is 'none'"),
     ({"type": "function", "function": {"name": "x"}}, "names 'x', which is not among")],
)  # fmt: skip
def test_a_wrong_choice_is_refused(client: Client, family: Any, choice: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client(family("hermes", None)).chat.completions.create(
            model="fake", messages=ASKED, tools=TOOLS, tool_choice=choice
        )
