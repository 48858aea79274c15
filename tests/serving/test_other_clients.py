"""LangChain's and pydantic-ai's models of OpenAI's API against the server: texts, streams, tools,
structures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.serving.tool_families import template


class Town(BaseModel):
    """A structure that the clients ask for."""

    name: Literal["north", "south"]
    sleeps: bool


@pytest.fixture
def chat_model(serve: Callable[..., str], make_runtime: Callable[..., Any]) -> Callable[..., Any]:
    """LangChain's model of a tiny runtime; tools in the form of one family."""
    from langchain_openai import ChatOpenAI

    def make(**options: Any) -> Any:
        url = serve(make_runtime(chat_template=template("hermes")))
        return ChatOpenAI(
            base_url=f"{url}/v1", api_key="none", model="tiny", max_retries=0, timeout=60, **options
        )

    return make


def test_langchain_answers_and_streams_the_same(chat_model: Callable[..., Any]) -> None:
    model = chat_model(temperature=0, max_tokens=12, seed=1)
    talk = [("system", "You answer."), ("user", "What plays?")]
    whole = model.invoke(talk)
    assert whole.usage_metadata["output_tokens"] == 12
    assert whole.response_metadata["finish_reason"] == "length"
    chunks = list(model.stream(talk))
    assert len(chunks) > 3
    assert "".join(chunk.content for chunk in chunks) == whole.content
    assert [each.content for each in model.batch([talk, talk])] == [whole.content] * 2


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gets_structures(chat_model: Callable[..., Any], method: str) -> None:
    model = chat_model(max_tokens=300, seed=2).with_structured_output(Town, method=method)
    assert isinstance(model.invoke("Which town?"), Town)


def test_langchain_gets_calls_of_tools(chat_model: Callable[..., Any]) -> None:
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool

    @tool
    def pick(way: Literal["north", "south"]) -> str:
        """Picks a way."""
        return f"{way} it is"

    model = chat_model(max_tokens=200, seed=1)
    asked = model.bind_tools([pick], tool_choice="pick").invoke("Which way?")
    (call,) = asked.tool_calls
    assert call["args"] in ({"way": "north"}, {"way": "south"})
    told = ToolMessage(pick.invoke(call["args"]), tool_call_id=call["id"])
    talk = [("user", "Which way?"), asked, told]
    again = model.bind_tools([pick]).invoke(talk)
    assert again.usage_metadata["input_tokens"] > asked.usage_metadata["input_tokens"]


@asynccontextmanager
async def agent_of(url: str, name: str = "tiny", **options: Any) -> AsyncIterator[Any]:
    """pydantic-ai's agent on a server; its connections are closed with the block."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=60) as client:
        yield Agent(OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)), **options)


def test_pydantic_ai_answers_and_streams_the_same(
    serve: Callable[..., str], make_runtime: Callable[..., Any]
) -> None:
    settings = {"temperature": 0.0, "max_tokens": 12}
    url = serve(make_runtime())

    async def ask() -> tuple[str, str]:
        async with agent_of(url, model_settings=settings) as agent:
            whole = await agent.run("What plays?")
            async with agent.run_stream("What plays?") as stream:
                texts = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
        return whole.output, "".join(texts)

    whole, streamed = asyncio.run(ask())
    assert whole
    assert streamed == whole


def test_pydantic_ai_gets_structures(
    serve: Callable[..., str], make_runtime: Callable[..., Any]
) -> None:
    from pydantic_ai import NativeOutput

    url = serve(make_runtime(chat_template=template("hermes")))
    settings = {"max_tokens": 300, "seed": 2}

    async def ask(form: Any) -> Any:
        async with agent_of(url, output_type=form, model_settings=settings) as agent:
            return (await agent.run("Which town?")).output

    assert isinstance(asyncio.run(ask(NativeOutput(Town))), Town)  # by response_format
    assert isinstance(asyncio.run(ask(Town)), Town)  # by a tool that must be called


def test_pydantic_ai_calls_tools(serve: Callable[..., str], family: Any) -> None:
    answers = iter([
        '<tool_call>\n{"name": "plus", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "It is 3."
    ])  # fmt: skip
    backend = family("hermes", lambda *_: next(answers))
    url = serve(backend)
    called: list[tuple[int, int]] = []

    def plus(a: int, b: int) -> int:
        """Adds."""
        called.append((a, b))
        return a + b

    async def ask() -> Any:
        async with agent_of(url, "fake", tools=[plus]) as agent:
            return (await agent.run("One and two?")).output

    assert asyncio.run(ask()) == "It is 3."
    assert called == [(1, 2)]
    assert json.dumps("3") in backend.prompts[1]
