"""Errors in each interface's format, with the status codes that clients expect."""

from __future__ import annotations

import math
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from inference.errors import Busy, InvalidRequest, Mismatch, OutriderError, Unavailable
from outrider.endpoint.interfaces.requests import UnservedField
from outrider.text.prompts import PromptTooLong

MAX_MESSAGE = 1000
"""Maximum length of an error message, which may quote the request."""

REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "a wrong request, or too many: the error says what is needed"},
    "5XX": {"description": "the target is away, or an internal error"},
}
"""Error answers as the published schema (/openapi.json) describes them."""

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
"""Types of errors by their status; others are an invalid_request_error."""

_KINDS_OF_MESSAGES = {500: "api_error", 503: "overloaded_error", 404: "not_found_error"}
"""Types in Anthropic's format that differ."""

_TYPE = re.compile(r"body|str|list\[.*\]")
"""Parts of an error's location that are no field names: pydantic adds the union member it tried."""


class ApiError(Exception):
    """An error that is sent to the client.

    kind: type of the error, if the status does not imply it
    param: the invalid field, if a field is the reason
    retry_after: seconds after which a retry may succeed
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, _sayable(message)
        self.kind = kind or _KINDS.get(status, "invalid_request_error")
        self.param, self.code, self.retry_after = param and _sayable(param), code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def of_messages(self) -> dict[str, Any]:
        """The error in Anthropic's format."""
        kind = _KINDS_OF_MESSAGES.get(self.status, self.kind)
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def response(self, path: str = "") -> JSONResponse:
        """Return the error as an answer, in the format of the interface with this path."""
        body = self.of_messages if path.startswith("/v1/messages") else self.body
        retry = self.retry_after
        headers = {} if retry is None else {"Retry-After": str(math.ceil(retry))}
        return JSONResponse(body, self.status, headers)


def _sayable(text: str) -> str:
    """Return the text without characters that UTF-8 cannot encode, cut to MAX_MESSAGE."""
    return text[:MAX_MESSAGE].encode(errors="replace").decode()


def api_error(error: Exception) -> ApiError:
    """Convert an exception to the error for a client. An unforeseen one becomes an internal error,
    and belongs in the log.
    """
    message = str(error)
    match error:
        case ApiError():
            return error
        case RequestValidationError() | ValidationError():
            return _invalid(error)
        case HTTPException():
            return ApiError(error.status_code, error.detail)
        case Busy():
            return ApiError(429, message, code="busy", retry_after=error.retry_after)
        case PromptTooLong():
            return ApiError(400, message, param=error.param, code="context_length_exceeded")
        case InvalidRequest():
            return ApiError(400, message)
        case Unavailable() | Mismatch():
            return ApiError(503, message, code="target_unavailable", retry_after=1.0)
        case OutriderError():
            return ApiError(500, message)
    return ApiError(500, "internal error: the log of the server has details")


def add_failures(app: FastAPI) -> None:
    """Make the application answer every error in the format of the request's interface."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        invalid = isinstance(error, RequestValidationError | ValidationError)
        if invalid and "json" not in request.headers.get("content-type", ""):
            error = ApiError(400, "a JSON body needs the header Content-Type: application/json")
        return api_error(error).response(request.url.path)

    ours, theirs = (ApiError, OutriderError), (ValidationError, RequestValidationError)
    for kind in (*ours, *theirs, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _invalid(error: RequestValidationError | ValidationError) -> ApiError:
    # for a union the most specific error
    first = max(error.errors(), key=lambda item: (item["type"] == "too_long", len(item["loc"])))
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, UnservedField):
        return ApiError(400, str(raised), param=raised.param, code="unsupported_parameter")
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON: a JSON object is needed")
    place = [str(key) for key in first["loc"] if not _TYPE.fullmatch(str(key))]
    name = ".".join(place)
    message = raised or first["msg"]
    return ApiError(400, f"{name or 'the body'}: {message}", param=name or None)
