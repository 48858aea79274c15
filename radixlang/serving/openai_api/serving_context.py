"""What every endpoint of the API shares: the backend, the settings, and how a job is begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixlang.constraints.specs import Constraint
from radixlang.errors import ParameterError
from radixlang.json_types import JsonBody
from radixlang.serving.config import ServerConfig
from radixlang.serving.event_stream import (
    DONE,
    EventStream,
    event,
    unless_gone,
)
from radixlang.serving.failures import ServingError, TextJSONResponse, error_body
from radixlang.serving.kept_branches import KeptBranches
from radixlang.serving.openai_api.asked import constraint_of, num_samples_of
from radixlang.serving.openai_api.schemas import SamplingFields
from radixlang.serving.openai_api.stored_replies import StoredTurn
from radixlang.serving.sampling_job import SamplingJob
from radixlang.serving.served_backend import ServedBackend

Chunks = AsyncIterator[JsonBody]


class ServingContext:
    """A backend behind the API."""

    def __init__(self, backend: ServedBackend, config: ServerConfig) -> None:
        self.backend = backend
        self.config = config
        self.model = config.model or backend.model_name
        self.kept = KeptBranches(config)

    def check_model(self, name: str | None) -> None:
        """Raise a ServingError unless a request names this model, or none."""
        if name not in (None, "", self.model, self.backend.model_name):
            raise ServingError(
                404, f"there is no model {name!r} here; it serves {self.model!r}", param="model",
                code="model_not_found",
            )  # fmt: skip

    async def compiled(self, body: SamplingFields, call: Constraint | None = None) -> Any:
        """The compiled constraint of a request, None without one; other requests go on.

        `call` is that of a tool which must be called.
        """
        spec = constraint_of(body)
        if spec is not None and call is not None:
            raise ParameterError("tool_choice forces a call, and response_format text; keep one")
        spec = spec or call
        if spec is None:
            return None
        return await asyncio.to_thread(self.backend.compile_constraint, spec)

    def num_samples(self, body: SamplingFields, num_prompts: int) -> int:
        """Samples of each prompt.

        Raises:
            ParameterError: more choices than one request may have.
        """
        num = num_samples_of(body)
        if num * num_prompts > self.config.max_choices:
            raise ParameterError(
                f"the request asks for {num * num_prompts} choices, and one request may have "
                f"{self.config.max_choices} here"
            )
        return num

    def new_job(self, body: SamplingFields, request: Request) -> SamplingJob:
        """A job in the namespace of the client's key and salt."""
        timeout_s = self.config.timeout_s
        if body.timeout_s is not None:
            if not body.timeout_s > 0:
                raise ParameterError(f"timeout_s must be above 0, got {body.timeout_s!r}")
            timeout_s = min(timeout_s, body.timeout_s)
        return SamplingJob(self.backend, namespace_of(request, body.cache_salt), timeout_s)

    def stored_turn(self, body: SamplingFields, request: Request, kind: str) -> StoredTurn:
        """What a request has to do with stored replies; see StoredTurn.of."""
        namespace = namespace_of(request, body.cache_salt)
        return StoredTurn.of(body, self.kept, namespace, kind, self.config.stored_s)

    @asynccontextmanager
    async def beginning(self, job: SamplingJob, turn: StoredTurn) -> AsyncIterator[None]:
        """Closes the job if the block fails."""
        try:
            yield
        except BaseException:
            job.close()
            raise
        finally:
            turn.close()

    async def answer(
        self, job: SamplingJob, request: Request, body_of: Callable[[], JsonBody]
    ) -> Response:
        """The reply in one piece, once every generation has ended."""
        try:
            await unless_gone(request.receive, job.wait())
            return TextJSONResponse(body_of())
        finally:
            job.close()

    async def stream(self, job: SamplingJob, request: Request, chunks: Chunks) -> Response:
        """The reply as a stream, once its first chunk is there: until then an error has a status
        of its own."""
        try:
            first = await unless_gone(request.receive, anext(chunks))
        except BaseException:
            job.close()
            raise
        return EventStream(_events(first, chunks), job.close)


async def _events(first: JsonBody, chunks: Chunks) -> AsyncIterator[str]:
    yield event(first)
    try:
        async for chunk in chunks:
            yield event(chunk)
    except Exception as error:
        yield event(error_body(error))
    yield DONE


def namespace_of(request: Request, salt: str | None) -> str:
    """The namespace of a request: its key's, and in it that of its salt."""
    namespace: str = request.scope.get("radixlang_namespace", "")
    return f"{namespace}/{salt}" if salt else namespace
