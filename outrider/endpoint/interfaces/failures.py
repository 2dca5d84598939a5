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

_TYPE = re.compile(r"body|str|list\[.*\]")
"""Parts of an error's location that are no field names: pydantic adds the union member it tried."""


MAX_MESSAGE = 1000
"""Maximum length of an error message, which may quote the request."""


class ApiError(Exception):
    """An error that is sent to the client.

    param: the invalid field, if a field is the reason
    retry_after: seconds after which a retry may succeed
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, _sayable(message), kind
        self.param, self.code, self.retry_after = param and _sayable(param), code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's format."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def of_messages(self) -> dict[str, Any]:
        """The error in Anthropic's format."""
        kind = {500: "api_error", 503: "overloaded_error", 404: "not_found_error"}
        error = {"type": kind.get(self.status, self.kind), "message": self.message}
        return {"type": "error", "error": error}

    def response(self, path: str = "") -> JSONResponse:
        """Return the error as an answer, in the format of the interface with this path."""
        body = self.of_messages if path.startswith("/v1/messages") else self.body
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after))
        return JSONResponse(body, self.status, headers)


def _sayable(text: str) -> str:
    """Return the text without characters that UTF-8 cannot encode, cut to MAX_MESSAGE."""
    return text[:MAX_MESSAGE].encode(errors="replace").decode()


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "a wrong request, or too many: the error says what is needed"},
    "5XX": {"description": "the target is away, or an internal error"},
}
"""Error answers as the published schema (/openapi.json) describes them."""

UNFORESEEN = ApiError(500, "internal error: the log of the server has details", "server_error")


def api_error(error: OutriderError) -> ApiError:
    """Convert Outrider's exception to the error for a client."""
    message = str(error)
    if isinstance(error, Busy):
        return ApiError(
            429, message, "rate_limit_error", code="busy", retry_after=error.retry_after
        )
    if isinstance(error, PromptTooLong):
        return ApiError(400, message, param=error.param, code="context_length_exceeded")
    if isinstance(error, InvalidRequest):
        return ApiError(400, message)
    if isinstance(error, Unavailable | Mismatch):
        return ApiError(503, message, "server_error", code="target_unavailable", retry_after=1.0)
    return ApiError(500, message, "server_error")


def add_failures(app: FastAPI) -> None:
    """Make the application answer every error in the format of the request's interface."""

    @app.exception_handler(ApiError)
    async def answer(request: Request, error: ApiError) -> JSONResponse:
        return error.response(request.url.path)

    @app.exception_handler(OutriderError)
    async def ours(request: Request, error: OutriderError) -> JSONResponse:
        return await answer(request, api_error(error))

    @app.exception_handler(ValidationError)
    @app.exception_handler(RequestValidationError)
    async def invalid(
        request: Request, error: RequestValidationError | ValidationError
    ) -> JSONResponse:
        if "json" in request.headers.get("content-type", ""):
            return await answer(request, _invalid(error))
        needed = "a JSON body needs the header Content-Type: application/json"
        return await answer(request, ApiError(400, needed))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return await answer(request, ApiError(error.status_code, str(error.detail)))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, _error: Exception) -> JSONResponse:
        return await answer(request, UNFORESEEN)


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
