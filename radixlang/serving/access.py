"""What comes before an endpoint: keys, the size of bodies, how many requests run at once.

Plain ASGI, so that a body is counted while it arrives and a refused client costs nothing more.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixlang.serving.config import ServerConfig
from radixlang.serving.failures import ServingError, error_response

OPEN_PATHS = frozenset({"/health"})


class Gate:
    """ASGI middleware that refuses requests, or passes them on with their body read.

    The scope's "radixlang_namespace" is that of the client's key: a digest, never the key itself.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._app = app
        self._config = config
        self._keys = {hashlib.sha256(key.encode()).digest() for key in config.api_keys}
        self._running: Counter[str] = Counter()
        self.num_running = 0
        self.last_request_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's event."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        self.last_request_s = time.monotonic()
        try:
            namespace = self._namespace(scope)
            self._enter(namespace)
        except ServingError as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            scope["radixlang_namespace"] = namespace
            await self._serve(scope, receive, send)
        finally:
            self._running[namespace] -= 1
            self.num_running -= 1
            self.last_request_s = time.monotonic()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await asyncio.wait_for(self._body(receive), self._config.body_timeout_s)
        except asyncio.TimeoutError:
            slow = ServingError(408, "the body did not arrive in time", kind="timeout_error")
            await error_response(slow)(scope, receive, send)
        except ServingError as error:
            await error_response(error)(scope, receive, send)
        else:
            if body is not None:
                await self._app(scope, _replay(body, receive), send)

    def _namespace(self, scope: Scope) -> str:
        if not self._keys:
            return ""
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, key = given.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        known = [hmac.compare_digest(digest, each) for each in self._keys]
        if scheme.lower() != b"bearer" or not any(known):
            raise ServingError(
                401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                kind="authentication_error", code="invalid_api_key",
            )  # fmt: skip
        return digest.hex()[:32]

    def _enter(self, namespace: str) -> None:
        config = self._config
        is_full = self.num_running >= config.max_requests
        if is_full or self._running[namespace] >= config.max_requests_per_key:
            raise ServingError(
                429, "too many requests at once; try again in a moment", kind="rate_limit_error",
                code="rate_limit_exceeded", headers={"Retry-After": "1"},
            )  # fmt: skip
        self._running[namespace] += 1
        self.num_running += 1

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None if the client went away before it was there."""
        most, parts, size = self._config.max_body_bytes, [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise ServingError(413, f"the body is larger than {most} bytes")
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, and then what follows it: a disconnect."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
