"""HTTP to one endpoint: keys, retries with growing pauses, a limit at once, errors as ours."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2

from radixlang.errors import (
    ParameterError,
    PromptTooLongError,
    RequestError,
    RuntimeClosedError,
)
from radixlang.json_types import JsonBody

_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
_MAX_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How an endpoint is asked.

    Args:
        timeout_s: most seconds without a byte of a reply.
        retries: how often a request is sent again after a refusal of the moment (429, 5xx) or a
            broken connection, as long as nothing of its reply has been used.
        first_pause_s: seconds before the first retry; each pause is twice the one before, and a
            server's `Retry-After` is kept to.
        max_at_once: requests at the same time; the others wait.
    """

    timeout_s: float = 120.0
    retries: int = 5
    first_pause_s: float = 0.5
    max_at_once: int = 64


class Endpoint:
    """One server; used from one event loop."""

    def __init__(
        self,
        url: str,
        key: str | None,
        options: EndpointOptions,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url = url.rstrip("/")
        self._options = options
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=options.timeout_s, transport=transport,
            limits=httpx2.Limits(max_connections=options.max_at_once),
        )  # fmt: skip
        self._places = asyncio.Semaphore(options.max_at_once)
        self.num_retries = 0

    async def get(self, path: str) -> JsonBody:
        """The JSON of a GET; a path from "/" is of the server, another of the API."""
        async with self._answer("GET", path, None) as reply:
            return _json(await reply.aread())

    async def post(self, path: str, body: JsonBody) -> JsonBody:
        """The JSON of a POST."""
        async with self._answer("POST", path, body) as reply:
            return _json(await reply.aread())

    async def events(self, path: str, body: JsonBody) -> AsyncIterator[JsonBody]:
        """The server-sent events of a POST.

        Raises:
            RequestError: the stream broke off, or an event tells of an error.
        """
        async with self._answer("POST", path, body) as reply:
            try:
                async for line in reply.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    event = _json(data.encode())
                    if "error" in event:
                        raise _as_error(500, event)
                    yield event
            except httpx2.HTTPError as error:
                raise RequestError(f"the stream of {self.url} broke off: {error!r}") from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: JsonBody | None
    ) -> AsyncIterator[httpx2.Response]:
        async with self._places:
            reply = await self._sent(method, path, body)
            try:
                yield reply
            finally:
                await reply.aclose()

    async def _sent(self, method: str, path: str, body: JsonBody | None) -> httpx2.Response:
        url = self._address(path)
        for attempt in range(self._options.retries + 1):
            is_last = attempt == self._options.retries
            wait_s = 0.0
            try:
                request = self._client.build_request(method, url, json=body)
                reply = await self._client.send(request, stream=True)
            except httpx2.TransportError as error:
                if is_last:
                    raise RequestError(
                        f"{url} does not answer: {error!r}; tried {attempt + 1} times"
                    ) from error
            except RuntimeError as error:
                raise RuntimeClosedError("the remote backend was closed") from error
            else:
                if reply.status_code < 400:
                    return reply
                said = await reply.aread()
                await reply.aclose()
                if is_last or reply.status_code not in _AGAIN:
                    raise _as_error(reply.status_code, _json(said, strict=False))
                wait_s = _seconds(reply.headers.get("retry-after"))
            self.num_retries += 1
            pause_s = self._options.first_pause_s * 2**attempt * (1 + random.random() / 4)
            await asyncio.sleep(min(max(pause_s, wait_s), _MAX_PAUSE_S))
        raise AssertionError("the loop returns or raises")

    def _address(self, path: str) -> str:
        if path.startswith("/"):  # of the server, beside the API
            return self.url.removesuffix("/v1") + path
        return f"{self.url}/{path}"


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:  # a date
        return 0.0


def _json(data: bytes, *, strict: bool = True) -> JsonBody:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if strict:
        raise RequestError(f"the endpoint did not answer with a JSON object: {data[:200]!r}")
    return {"error": {"message": data[:500].decode("utf-8", "replace")}}


def _as_error(status: int, body: JsonBody) -> Exception:
    """The error of a reply, as the engine would raise it."""
    inner = body.get("error", body)
    said = inner.get("message") if isinstance(inner, dict) else inner
    text = f"the endpoint refuses ({status}): {said or body}"
    code = inner.get("code") if isinstance(inner, dict) else None
    if code == "context_length_exceeded" or "context length" in str(said):
        return PromptTooLongError(text)
    if status in (400, 401, 403, 404, 413, 422):
        return ParameterError(text)
    return RequestError(text)
