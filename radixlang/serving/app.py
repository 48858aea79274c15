"""The ASGI application: routes, and errors as replies."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

import radixlang
from radixlang.errors import RadixlangError, RuntimeClosedError
from radixlang.program.program import Program
from radixlang.serving.access import Gate
from radixlang.serving.config import ServerConfig
from radixlang.serving.failures import ServingError, TextJSONResponse, error_response
from radixlang.serving.metrics import Measured, ServerMetrics
from radixlang.serving.openai_api.chat_completions import chat, model_body, models_body
from radixlang.serving.openai_api.completions import complete
from radixlang.serving.openai_api.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    RenderRequest,
    TokenizeRequest,
)
from radixlang.serving.openai_api.serving_context import ServingContext
from radixlang.serving.openai_api.tokenizing import detokenize, render, tokenize, tokenizer_info
from radixlang.serving.program_endpoints import add_programs
from radixlang.serving.served_backend import ServedBackend


class ServerApp:
    """The application of one backend and of programs that run on it; an ASGI server calls it.

    Attributes:
        gate: refuses requests, and knows how many run.
    """

    def __init__(
        self, backend: ServedBackend, config: ServerConfig, programs: Sequence[Program] = ()
    ) -> None:
        self.api = FastAPI(
            title="radixlang", version=radixlang.__version__, docs_url=None, redoc_url=None
        )
        self._metrics = ServerMetrics(backend.stats)
        self._context = context = ServingContext(backend, config)
        _add_openai(self.api, context)
        _add_operations(self.api, context, self._metrics)
        add_programs(self.api, backend, config, programs)
        _add_errors(self.api)
        self.gate = Gate(self.api, config)
        self._outer = Measured(self.gate, self._metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's event."""
        await self._outer(scope, receive, send)

    def close(self) -> None:
        """Release what stored replies hold."""
        self._context.kept.close()


def _add_openai(api: FastAPI, context: ServingContext) -> None:
    @api.get("/v1/models")
    async def models() -> Response:
        """The models that are served."""
        return TextJSONResponse(models_body(context))

    @api.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        """One model."""
        context.check_model(name)
        return TextJSONResponse(model_body(context))

    @api.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        """Text after a prompt."""
        return await complete(context, body, request)

    @api.post("/tokenize")
    async def tokens_of(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of a text."""
        return await tokenize(context, body, request)

    @api.post("/detokenize")
    async def text_of(body: DetokenizeRequest) -> Response:
        """Text of token ids."""
        return await detokenize(context, body)

    @api.post("/render")
    async def rendered(body: RenderRequest) -> Response:
        """Turns as the chat template writes them."""
        return await render(context, body)

    @api.get("/tokenizer_info")
    async def info() -> Response:
        """The model's own tokens and chat template."""
        return tokenizer_info(context)

    @api.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation."""
        return await chat(context, body, request)


def _add_operations(api: FastAPI, context: ServingContext, metrics: ServerMetrics) -> None:
    @api.get("/health")
    async def health() -> Response:
        """200 while the backend takes work."""
        try:
            context.backend.new_branch().release()
        except RuntimeClosedError as error:
            return error_response(error)
        return TextJSONResponse({"status": "ok", "model": context.model})

    @api.get("/metrics")
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_errors(api: FastAPI) -> None:
    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(_of_validation(error))

    async def known(_: Request, error: Exception) -> Response:
        return error_response(error)

    async def of_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(ServingError(error.status_code, str(error.detail)))

    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, of_http)
    api.add_exception_handler(RadixlangError, known)
    api.add_exception_handler(RecursionError, _too_deep)
    api.add_exception_handler(Exception, known)  # uvicorn logs it


async def _too_deep(_: Request, error: Exception) -> Response:
    return error_response(ServingError(400, "the body is nested too deeply"))


def _of_validation(error: RequestValidationError) -> ServingError:
    """The first fault of a body, by its field."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])  # without "body" or "query"
    said = first["msg"]
    if first["type"] == "extra_forbidden":
        said = "this server has no such field"
    return ServingError(400, f"{place or 'body'}: {said}", param=place or None)
