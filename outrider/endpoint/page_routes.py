"""The chat page and its routes: choosing the target, generating with details, steering the cost.

The page's events also have the proposer of each token, the candidates sent, and a time breakdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
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
from outrider.client.watching import TextEvent, Watcher, ended
from outrider.endpoint.interfaces.answering import (
    TEMPERATURE,
    Answer,
    StreamEvent,
    answer_request,
    named_event,
)
from outrider.endpoint.interfaces.failures import ApiError
from outrider.endpoint.interfaces.requests import ChatRequest
from outrider.endpoint.target_manager import TargetManager, TargetSettings
from outrider.endpoint.text_runner import TextRunner
from outrider.options.draft_flags import NONE
from outrider.text.completion import Completion
from outrider.text.completion import Request as TextRequest
from outrider.text.parameters import Parameters, defaults_of
from outrider.text.prompts import resume_request
from outrider.text.runner import Task

STATE_SECONDS = 1.0
"""Seconds without an answer from the target after which the page reports it as unavailable."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Headers of the page: it loads nothing from other sites, and runs no script in generated text."""


class PageText(ChatRequest):
    """The page's request: a chat, streamed with the details that the page shows."""

    stream: bool | None = True
    draft: Literal["none"] | None = None  # default: the server's draft
    made: Annotated[list[int], Len(max_length=1 << 17)] | None = None  # ids before a break


class Knob(BaseModel):
    """A position between speed and cost."""

    cs: Annotated[int, Ge(0), Le(100)] | Literal["tps", "balanced", "cost"]


def page_routes(manager: TargetManager, admin: Sequence[Depends]) -> APIRouter:
    """Return the routes below /page, which the page calls.

    admin: checks that the caller may change the target in use
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
        return await answer_request(manager, body, http, _PageWriter)

    return router


class _PageFiles(StaticFiles):
    """The page's files, each sent with HEADERS. The last route, so it answers unknown paths."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            route = f"{scope['method']} {scope['path']}"
            raise ApiError(404, f"{route} is not served: see /openapi.json") from error

    def file_response(self, *args: Any, **options: Any) -> Response:
        response = super().file_response(*args, **options)
        response.headers.update(HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Serve the page's files from the package. They need no key."""
    app.mount("/", _PageFiles(packages=[("outrider.endpoint", "page")], html=True), name="page")


def _state(manager: TargetManager) -> dict[str, Any]:
    """Return the target in use and its prices, or why there is no target."""
    texts, options = manager.texts, manager.options
    if texts is None:
        where = options.target_host
        return {"running": False, "reason": manager.reason, "address": where}
    client = texts.client
    return {
        "running": True,
        "address": options.target_host,
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
    """Return why the target in use does not answer at the moment; None if it answers."""
    try:
        if texts is not None:
            texts.client.target.check(STATE_SECONDS)
    except OutriderError as error:
        return str(error)
    return None


class _PageWriter(Answer):
    """Writes an output as the events of its Watcher, followed by its figures."""

    def task(self, request: TextRequest) -> Task[TextEvent]:
        client, body = self._client, self._body

        def work(put: Callable[[TextEvent], None], end: Event) -> Completion:
            watcher, rest = Watcher(client, put), request
            if body.made:
                rest, text, tokens = resume_request(client.text_model, request, body.made)
                watcher.report("made", {"text": text, "tokens": tokens})
            return watcher.complete(rest, end, alone=body.draft == NONE)

        return work

    def whole(self, texts: Sequence[Completion]) -> dict[str, Any]:
        return ended(self._client, texts[0])

    def add(self, _index: int, event: TextEvent) -> Iterable[StreamEvent]:
        yield named_event(*event)

    def finish(self, _index: int, text: Completion) -> Iterable[StreamEvent]:
        yield named_event("end", ended(self._client, text))

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        yield named_event("error", error.body["error"])
