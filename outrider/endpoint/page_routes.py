"""The chat page, and its routes: the target in use, texts with everything to watch, steering.

Its events have more than those of the OpenAI interface: who named each token, the candidates as
they are sent, and where time goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len
from fastapi import APIRouter, FastAPI, Request
from fastapi.params import Depends
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from inference.errors import OutriderError
from outrider.client.client import Client
from outrider.client.watching import TextEvent, Watcher, ended
from outrider.endpoint.interfaces.answering import (
    TEMPERATURE,
    StreamEvent,
    answer_request,
    named_event,
)
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.interfaces.requests import ChatRequest
from outrider.endpoint.target_manager import TargetManager, TargetSettings
from outrider.endpoint.text_runner import TextRunner
from outrider.options.draft_flags import NONE
from outrider.text.completion import Completion, silent
from outrider.text.completion import Request as TextRequest
from outrider.text.defaults import defaults_of
from outrider.text.parameters import Parameters
from outrider.text.prompts import resume_request
from outrider.text.runner import Task

STATE_SECONDS = 1.0
"""Seconds without an answer of the target before the page reports that."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Headers of the page: nothing is loaded from elsewhere, and no text can become a script."""


class PageText(ChatRequest):
    """A text that the page requests: a chat, which is streamed with everything to watch."""

    stream: bool | None = True
    draft: Literal["none"] | None = None  # by default the server's own
    made: Annotated[list[int], Len(max_length=1 << 17)] | None = None  # ids before a break


class Knob(BaseModel):
    """A position of cost against speed."""

    cs: Annotated[int, Ge(0), Le(100)] | Literal["tps", "balanced", "cost"]


def page_routes(manager: TargetManager, admin: Sequence[Depends]) -> APIRouter:
    """Routes below /page that the page calls.

    admin: checks who may change the target in use
    """
    router = APIRouter(prefix="/page")

    @router.get("/state")
    async def state() -> dict[str, Any]:
        trouble = await asyncio.to_thread(_trouble, manager.texts)
        return _state(manager) | {"trouble": trouble}

    @router.post("/start", dependencies=admin)
    async def start(settings: TargetSettings) -> dict[str, Any]:
        await asyncio.to_thread(manager.open, settings)
        return _state(manager)

    @router.post("/stop", dependencies=admin)
    async def stop() -> dict[str, Any]:
        await asyncio.to_thread(manager.close)
        return _state(manager)

    @router.post("/steer", dependencies=admin)
    async def steer(knob: Knob) -> dict[str, Any]:
        texts = await manager.get()
        await asyncio.to_thread(texts.client.steer, str(knob.cs))
        return _state(manager)

    @router.post("/texts")
    async def text(body: PageText, http: Request) -> Response:
        texts = await manager.get()
        make = partial(_PageWriter, texts.client)
        return await answer_request(texts, body, http, make, partial(_watched, body))

    return router


class _PageFiles(StaticFiles):
    """The page's files, each with HEADERS. The last route: other paths are not found."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            route = f"{scope['method']} {scope['path']}"
            raise ApiError(404, f"{route} is not served: see /openapi.json") from error

    def file_response(self, *args: Any, **named: Any) -> Response:
        response = super().file_response(*args, **named)
        response.headers.update(HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page's files, which are part of the package and need no key."""
    app.mount("/", _PageFiles(packages=[("outrider.endpoint", "page")], html=True), name="page")


def _state(manager: TargetManager) -> dict[str, Any]:
    """The target in use, or why there is none, with its prices."""
    texts, options = manager.texts, manager.options
    if texts is None:
        where = options.connection.target_host
        return {"running": False, "reason": manager.reason, "address": where}
    client = texts.client
    return {
        "running": True,
        "address": options.connection.target_host,
        "model": client.model,
        "draft": client.draft,
        "device": client.target.description.device,
        "length": client.length,
        "priced": client.budget.billing.source,
        "weight": client.goal.weight,
        "unsteered": client.unsteered,
        "texts": texts.running,
        "temperature": Parameters().settled(client.model, TEMPERATURE).temperature,
        "suggestions": defaults_of(client.model).suggestions,
    }


def _trouble(texts: TextRunner | None) -> str | None:
    """Reason why the target in use does not answer now; None where it does."""
    try:
        if texts is not None:
            texts.client.target.check(STATE_SECONDS)
    except OutriderError as error:
        return str(error)
    return None


class _PageWriter:
    """Writes a text as the events of its watcher, with its figures at the end."""

    def __init__(self, client: Client, _requests: Sequence[TextRequest]) -> None:
        self._client = client

    def whole(self, texts: Sequence[Completion]) -> dict[str, Any]:
        return ended(self._client, texts[0])

    def begin(self) -> Iterable[StreamEvent]:
        return ()

    def add(self, _index: int, event: TextEvent) -> Iterable[StreamEvent]:
        yield named_event(*event)

    def finish(self, _index: int, text: Completion) -> Iterable[StreamEvent]:
        yield named_event("end", ended(self._client, text))

    def end(self, _texts: Sequence[Completion]) -> Iterable[StreamEvent]:
        return ()

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        yield named_event("error", error.body["error"])


def _watched(body: PageText, client: Client, request: TextRequest) -> Task[TextEvent]:
    """The task that generates a text of the page, and reports its events."""

    def work(put: Callable[[TextEvent], None], end: Event) -> Completion:
        watcher, rest = Watcher(client, put), request
        if body.made:
            rest, text, tokens = resume_request(client.text_model, request, body.made)
            watcher.report("made", {"text": text, "tokens": tokens})
        return watcher.complete(rest, silent, end, alone=body.draft == NONE)

    return work
