"""Errors in the format of their interface, with the status code that clients expect."""

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
"""Parts of an error's location that are no fields: pydantic adds the member of a union it tried."""


MAX_MESSAGE = 1000
"""Maximum length of an error message, which may quote the request."""


class ApiError(Exception):
    """An error for a client.

    param: the field that is wrong, where it is one
    retry_after: seconds after which asking again may help
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
        """The answer to a request for this path."""
        body = self.of_messages if path.startswith("/v1/messages") else self.body
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(math.ceil(self.retry_after))
        return JSONResponse(body, self.status, headers)


def _sayable(text: str) -> str:
    """The text as UTF-8 can carry it, cut to MAX_MESSAGE."""
    return text[:MAX_MESSAGE].encode(errors="replace").decode()


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "a wrong request, or too many: the error says what is needed"},
    "5XX": {"description": "the target is away, or an internal error"},
}
"""Refusals as the published schema (/openapi.json) describes them."""

UNFORESEEN = ApiError(500, "internal error: the log of the server has details", "server_error")


def api_error(error: OutriderError) -> ApiError:
    """The error of a text as one for a client."""
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
    """Answer every error of this application in the format of its interface."""

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
    # of a union, what came nearest
    first = max(error.errors(), key=lambda each: (each["type"] == "too_long", len(each["loc"])))
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, UnservedField):
        return ApiError(400, str(raised), param=raised.param, code="unsupported_parameter")
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not JSON: a JSON object is needed")
    place = [str(part) for part in first["loc"] if not _TYPE.fullmatch(str(part))]
    name = ".".join(place)
    message = raised or first["msg"]
    return ApiError(400, f"{name or 'the body'}: {message}", param=name or None)
