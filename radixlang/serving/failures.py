"""Errors as replies: the status, and a body as OpenAI's clients read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from radixlang.errors import (
    CancelledError,
    ConstraintError,
    DeadlineError,
    ParameterError,
    PoolExhaustedError,
    PromptTooLongError,
    RadixlangError,
    RuntimeClosedError,
)
from radixlang.json_types import JsonBody
from radixlang.records.json_text import dump_json


class ServingError(RadixlangError):
    """A request that is refused, with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = dict(headers or {})


class TextJSONResponse(JSONResponse):
    """JSON in UTF-8, also where a text has a lone surrogate."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return dump_json(content).encode("utf-8")


def error_body(error: BaseException) -> JsonBody:
    """The body that tells a client of an error."""
    known = as_serving_error(error)
    return {
        "error": {
            "message": str(known), "type": known.kind, "param": known.param, "code": known.code,
        }
    }  # fmt: skip


def error_response(error: BaseException) -> JSONResponse:
    """The reply that tells a client of an error."""
    known = as_serving_error(error)
    return TextJSONResponse(error_body(known), known.status, headers=known.headers)


def as_serving_error(error: BaseException) -> ServingError:
    """An error with its status: the client's, the server's, or a moment's.

    The text of an unexpected error stays in the log.
    """
    match error:
        case ServingError():
            return error
        case PromptTooLongError():
            return ServingError(400, str(error), code="context_length_exceeded")
        case ParameterError() | ConstraintError():
            return ServingError(400, str(error))
        case DeadlineError():
            return ServingError(504, str(error), kind="timeout_error", code="deadline_exceeded")
        case PoolExhaustedError():
            return ServingError(503, str(error), kind="server_error", headers={"Retry-After": "1"})
        case RuntimeClosedError() | CancelledError():
            return ServingError(503, "the server is stopping", kind="server_error")
        case RadixlangError():
            return ServingError(500, str(error), kind="server_error")
    return ServingError(500, "the server failed; its log says why", kind="server_error")
