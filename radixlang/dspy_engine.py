"""A language model for DSPy over the radix tree (`radixlang[dspy]`).

    import dspy
    from radixlang.dspy_engine import radix_lm

    dspy.configure(lm=radix_lm(runtime, max_tokens=200), adapter=dspy.JSONAdapter())

DSPy asks for the n candidates of a prediction one after the other, with the same prompt, which is
computed once here. The schema that JSONAdapter makes of typed outputs is a constraint, so they
always parse. An engine in the sense of `dspy.clients.engines`: one request, one response.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from radixlang.default_runtime import runtime_or_default
from radixlang.errors import ParameterError, ProgramError, PromptTooLongError
from radixlang.program.program import function
from radixlang.protocol import Backend
from radixlang.state.expressions.builders import assistant_begin, gen, role
from radixlang.state.state import State

if TYPE_CHECKING:
    import dspy
    from dspy.lm15 import Request, Response

Turn = tuple[str, str]
_ROLES = {"user": "user", "assistant": "assistant", "developer": "system", "tool": "tool"}
_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def radix_lm(runtime: Backend | None = None, *, seed: int = 0, **options: Any) -> dspy.LM:
    """A dspy.LM whose answers come from a runtime.

    Args:
        runtime: None is the default one.
        seed: of the samples; each call draws its own, so the same calls in the same order give the
            same answers. A `seed` in a request's config is taken as it is.
        **options: those of dspy.LM: temperature, max_tokens, cache and the rest.

    Raises:
        ParameterError: DSPy is not installed.
    """
    dspy = _dspy()
    engine = RadixEngine(runtime_or_default(runtime), seed)
    name = f"radixlang/{engine.runtime.model_name}"
    return dspy.LM(name, engine=engine, async_engine=AsyncRadixEngine(engine), **options)


class RadixEngine:
    """DSPy's engine over a runtime, for calls that wait.

    Content is text: a request with images, tools or log-probabilities is refused by name, with
    DSPy's UnsupportedFeatureError.
    """

    supports_response_schema = True
    supported_params = frozenset({
        "temperature", "max_tokens", "max_completion_tokens", "top_p", "top_k", "stop", "seed",
        "frequency_penalty", "presence_penalty", "response_format",
    })  # fmt: skip

    def __init__(self, runtime: Backend, seed: int = 0) -> None:
        self.runtime = runtime
        self._seeds = itertools.count(seed << 32)

    def complete(self, request: Request) -> Response:
        """Answer one request."""
        turns, options = self._asked(request)
        with _Translated():
            state = _reply.run(turns, runtime=self.runtime, **options)
            return self._response(request, state)

    def stream(self, request: Request) -> Iterator[Any]:
        """The answer's events; its text comes in one piece."""
        from dspy.lm15 import response_to_events

        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing to close: the runtime is its owner's."""

    async def acomplete(self, request: Request) -> Response:
        """Answer one request without blocking the event loop."""
        turns, options = self._asked(request)
        with _Translated():
            state = await _reply.arun(turns, runtime=self.runtime, **options)
            return self._response(request, state)

    def _asked(self, request: Request) -> tuple[list[Turn], dict[str, Any]]:
        """The turns of a request and the options of a run."""
        config = request.config
        for name in ("tool_choice", "reasoning", "logprobs", "probabilities", "extensions"):
            if getattr(config, name) is not None:
                raise _unsupported(name)
        if request.tools:
            raise _unsupported("tools")
        given = {name: getattr(config, name) for name in _SAMPLING}
        options: dict[str, Any] = {name: each for name, each in given.items() if each is not None}
        options["seed"] = next(self._seeds) if config.seed is None else config.seed
        options["stop"] = config.stop
        if config.max_tokens is not None:
            options["max_tokens"] = config.max_tokens
        system = [] if request.system is None else [("system", _text(request.system))]
        turns = [*system, *((_ROLES[each.role], _text(each.parts)) for each in request.messages)]
        return turns, {**options, "schema": _schema(config.response_format)}

    def _response(self, request: Request, state: State) -> Response:
        from dspy.lm15 import Message, Response, Usage

        completion = state.completion("reply")
        usage = completion.usage
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant(completion.text),
            finish_reason="length" if completion.finish_reason == "length" else "stop",
            usage=Usage(
                input_tokens=usage.num_prompt_tokens,
                output_tokens=usage.num_generated_tokens,
                cache_read_tokens=usage.num_cached_tokens,
            ),
        )


class AsyncRadixEngine:
    """The same engine for `await`: concurrent calls run in one batch."""

    def __init__(self, engine: RadixEngine) -> None:
        self._engine = engine

    async def complete(self, request: Request) -> Response:
        """Answer one request."""
        return await self._engine.acomplete(request)

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        """The answer's events; its text comes in one piece."""
        from dspy.lm15 import response_to_events

        for event in response_to_events(await self._engine.acomplete(request)):
            yield event

    async def aclose(self) -> None:
        """Nothing to close: the runtime is its owner's."""


@function(name="dspy")
def _reply(s: State, turns: list[Turn], schema: Any = None) -> None:
    """The turns, and the assistant's next; it goes on where a last turn of its own stopped."""
    *before, (last_role, last) = turns
    for name, content in before:
        s += role(name, content)
    if last_role == "assistant":
        s += assistant_begin() + last
    else:
        s += role(last_role, last) + assistant_begin()
    s += gen("reply") if schema is None else gen("reply", json_schema=schema, finish="close")


class _Translated:
    """Raises our errors as those that DSPy knows; others pass."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        cause = error.__cause__ if isinstance(error, ProgramError) else error
        if isinstance(cause, PromptTooLongError):
            from dspy.lm15 import ContextLengthError

            raise ContextLengthError(str(cause)) from error


def _schema(response_format: Any) -> Any:
    """The JSON schema that a request asks for; None for plain text."""
    if response_format is None:
        return None
    if response_format["type"] == "json_object":
        return {"type": "object"}
    return response_format["schema"]


def _text(parts: Any) -> str:
    """The text of a message's parts; refuses others."""
    if isinstance(parts, str):
        return parts
    for part in parts:
        if part.type != "text":
            raise _unsupported(part.type)
    return "".join(part.text for part in parts)


def _unsupported(what: str) -> Exception:
    from dspy.lm15 import UnsupportedFeatureError

    error: Exception = UnsupportedFeatureError(
        f"radixlang's engine has no {what} in a request; leave it out"
    )
    return error


def _dspy() -> Any:
    try:
        import dspy
    except ModuleNotFoundError as error:
        raise ParameterError("DSPy is not installed; pip install 'radixlang[dspy]'") from error
    return dspy
