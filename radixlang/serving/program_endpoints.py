"""Programs as endpoints: POST /programs/NAME runs one, with the arguments of its signature."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated

from fastapi import Body, FastAPI, Query, Request, Response
from pydantic import BaseModel

from radixlang.constraints.json_writing import to_json
from radixlang.errors import (
    BudgetError,
    CancelledError,
    ConstraintError,
    ParameterError,
    PromptTooLongError,
    RadixlangError,
    place_of,
)
from radixlang.json_types import JsonBody
from radixlang.keywords import RunKeywords
from radixlang.program.program import Program
from radixlang.serving.config import ServerConfig
from radixlang.serving.event_stream import DONE, EventStream, event, unless_gone
from radixlang.serving.failures import TextJSONResponse, as_serving_error, error_body
from radixlang.serving.program_models import (
    ProgramFailure,
    ProgramFault,
    RunFields,
    arguments_model,
    fields_of,
    kinds_of,
    result_model,
)
from radixlang.serving.served_backend import ServedBackend
from radixlang.state.reading.streaming import ProgramStream

_NAME = re.compile(r"[\w.-]+", re.ASCII)


def add_programs(
    api: FastAPI, backend: ServedBackend, config: ServerConfig, programs: Sequence[Program]
) -> None:
    """Add an endpoint for each program.

    Raises:
        ParameterError: an argument cannot come as JSON, or two programs have one name.
    """
    names = [program.name for program in programs]
    for name in names:
        if names.count(name) > 1 or not _NAME.fullmatch(name):
            raise ParameterError(
                f"the address /programs/{name} is not one of one program; give it a name of "
                "letters, digits, '_', '-' and '.' of its own: @radixlang.function(name=…)"
            )
    for program in programs:
        _add(api, ProgramEndpoint(backend, config, program))


def _add(api: FastAPI, served: ProgramEndpoint) -> None:
    async def endpoint(
        body: BaseModel, request: Request, fields: Annotated[RunFields, Query()]
    ) -> Response:
        return await served.answer(body, request, fields)

    model = served.arguments
    is_optional = not any(field.is_required() for field in model.model_fields.values())
    endpoint.__annotations__["body"] = (
        Annotated[model, Body(default_factory=model)] if is_optional else model
    )
    name = served.program.name
    api.add_api_route(
        f"/programs/{name}", endpoint, methods=["POST"], operation_id=name, summary=name,
        description=inspect.cleandoc(served.program.__doc__ or ""), tags=["programs"],
        response_model=served.result, responses={"default": {"model": ProgramFailure}},
    )  # fmt: skip


class ProgramEndpoint:
    """One program behind its address.

    Attributes:
        program: what is run.
        arguments: the model of the request's body.
        result: the model of the reply.
    """

    def __init__(self, backend: ServedBackend, config: ServerConfig, program: Program) -> None:
        self._backend, self._config, self.program = backend, config, program
        kinds = kinds_of(program)
        self.arguments = arguments_model(program, kinds)
        self.result = result_model(program, kinds.get("return", object))

    async def answer(self, body: BaseModel, request: Request, fields: RunFields) -> Response:
        """Run the program for a request; its end is the run's."""
        asked = request.headers.get("accept", "")
        is_stream = fields.stream or "text/event-stream" in asked
        try:
            run = self._begin(body, request, fields)
        except RadixlangError as error:
            return _failed(error)
        try:
            if not is_stream:
                return await self._whole(run, request)
            chunks = self._chunks(run)
            first = await unless_gone(request.receive, anext(chunks))
        except RadixlangError as error:
            run.cancel()
            return _failed(error)
        except BaseException:
            run.cancel()
            raise
        return EventStream(_events(first, chunks), run.cancel)

    def _begin(self, body: BaseModel, request: Request, fields: RunFields) -> ProgramStream:
        given = {name: getattr(body, key) for key, name in fields_of(self.program).items()
                 if key in body.model_fields_set}  # fmt: skip
        options = _run_options(self.program.options, self._config, fields)
        options["namespace"] = _namespace(request, self.program.options.get("namespace", ""))
        options["runtime"] = self._backend
        return self.program.with_options(**options).bind(**given).stream()

    async def _whole(self, run: ProgramStream, request: Request) -> Response:
        async def body() -> JsonBody:
            async for _ in run:
                pass
            return await asyncio.to_thread(_result_of, run)

        try:
            return TextJSONResponse(await unless_gone(request.receive, body()))
        finally:
            run.cancel()

    async def _chunks(self, run: ProgramStream) -> AsyncIterator[JsonBody]:
        """Pieces of text as they come, and the result."""
        async for piece in run:
            yield {"type": "text", "name": piece.name, "branch": list(piece.branch),
                   "text": piece.text}  # fmt: skip
        yield {"type": "result", **await asyncio.to_thread(_result_of, run)}


def _run_options(own: RunKeywords, config: ServerConfig, fields: RunFields) -> RunKeywords:
    """The request's options, within what the program and the server allow."""
    times = (own.get("timeout"), fields.timeout_s, config.timeout_s)
    tokens = (own.get("max_total_tokens"), config.max_tokens)
    found = RunKeywords(
        timeout=min(time for time in times if time is not None),
        max_total_tokens=min(each for each in tokens if each is not None),
    )
    if fields.seed is not None:
        found["seed"] = fields.seed
    return found


def _namespace(request: Request, own: str) -> str:
    key: str = request.scope.get("radixlang_namespace", "")
    return f"{key}/{own}" if own else key


def _result_of(run: ProgramStream) -> JsonBody:
    """The result of a run that has ended; parsing its values may run the user's validators."""
    state = run.state
    return {"text": state.text(), "values": to_json(state.values()),
            "returned": to_json(state.result), "usage": to_json(state.usage())}  # fmt: skip


def _failed(error: RadixlangError) -> Response:
    cause = error.__cause__ or error
    known = as_serving_error(cause)
    is_ours = isinstance(cause, (ParameterError, ConstraintError))  # a fault of the program
    status = 400 if isinstance(cause, (BudgetError, PromptTooLongError)) else known.status
    return TextJSONResponse(
        {"error": _fault(error)}, 500 if is_ours else status, headers=known.headers
    )


def _fault(error: RadixlangError) -> JsonBody:
    cause = error.__cause__ or error
    location = place_of(error) or place_of(cause)
    said = str(cause) if not isinstance(cause, CancelledError) else "the program was cancelled"
    return ProgramFault(
        type=type(cause).__name__, message=said, location=Path(location).name or None,
        code=as_serving_error(cause).code,
    ).model_dump()  # fmt: skip


async def _events(first: JsonBody, chunks: AsyncIterator[JsonBody]) -> AsyncIterator[str]:
    yield event(first)
    try:
        async for chunk in chunks:
            yield event(chunk)
    except RadixlangError as error:
        yield event({"type": "error", "error": _fault(error)})
    except Exception as error:
        yield event({"type": "error", **error_body(error)})
    yield DONE
