"""The chat page, and its routes: the target in use, texts with everything to watch, steering.

Its events have more than those of the OpenAI interface: who named each token, the candidates as
they are sent, and where time goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from threading import Event
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len, Lt
from fastapi import APIRouter, FastAPI, Request
from fastapi.params import Depends
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from inference.errors import OutriderError
from inference.sampling import SEED_BITS, random_seed
from outrider.client.watching import TextEvent, Watcher, ended
from outrider.endpoint.answering import TEMPERATURE, StreamEvent, event_stream, named_event
from outrider.endpoint.chat_messages import ChatMessage, Text
from outrider.endpoint.failures import UNFORESEEN, ApiError, api_error
from outrider.endpoint.requests import MAX_MESSAGES
from outrider.endpoint.target_manager import TargetManager, TargetSettings
from outrider.endpoint.text_runner import TextRunner
from outrider.options.draft_flags import NONE
from outrider.text.completion import Completion, silent
from outrider.text.defaults import defaults_of
from outrider.text.parameters import Parameters
from outrider.text.prompts import make_request, resume_request
from outrider.text.runner import Task

log = logging.getLogger(__name__)

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


class PageText(BaseModel):
    """A text that the page requests."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    messages: Annotated[list[ChatMessage], Len(max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Ge(1)] = 512
    temperature: Annotated[float, Ge(0), Le(1000)] | None = None  # the model's default
    top_p: Annotated[float, Ge(0), Le(1)] = 1.0
    seed: Annotated[int, Ge(0), Lt(2**SEED_BITS)] | None = None
    stop: list[Text] | None = None  # the model's default
    draft: Literal["none"] | None = None  # by default the server's own
    made: Annotated[list[int], Len(max_length=1 << 17)] = []  # ids of a text that broke off


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
        return event_stream(_events(texts, body, http.state.caller))

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


async def _events(
    texts: TextRunner, body: PageText, caller: str
) -> AsyncGenerator[StreamEvent, None]:
    """The events of a text: its name, and its data as JSON."""
    try:
        task = await texts.read(partial(_task, texts, body))
        async with aclosing(texts.run([task], caller)) as parts:
            async for _, event in parts:
                if isinstance(event, Completion):
                    yield named_event("end", ended(texts.client, event))
                else:
                    yield named_event(*event)
    except OutriderError as error:
        yield named_event("error", api_error(error).body["error"])
    # the page shows any other fault, too: without an event it could only say that the stream ended
    except Exception:
        log.exception("a text of the page failed")
        yield named_event("error", UNFORESEEN.body["error"])


def _task(texts: TextRunner, body: PageText, _left: Event) -> Task[TextEvent]:
    """The task that generates a text of the page, and reports its events."""
    client = texts.client
    seed = random_seed() if body.seed is None else body.seed
    parameters = Parameters(body.max_tokens, body.temperature, 0, body.top_p, seed, body.stop)
    parameters = parameters.settled(client.model, TEMPERATURE)
    request = make_request(
        client.text_model, [message.plain for message in body.messages], parameters
    )
    before: dict[str, Any] = {}
    if body.made:
        request, text, tokens = resume_request(client.text_model, request, body.made)
        before = {"text": text, "tokens": tokens}

    def work(put: Callable[[TextEvent], None], end: Event) -> Completion:
        watcher = Watcher(client, put)
        if before:
            watcher.report("made", before)
        return watcher.complete(request, silent, end, alone=body.draft == NONE)

    return work
