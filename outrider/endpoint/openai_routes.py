"""The routes of the OpenAI interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse

from inference.errors import OutriderError
from inference.sampling import random_seed
from outrider.endpoint.answers import (
    FINISHED,
    Answer,
    ChatAnswer,
    ModelCard,
    ModelCards,
    TextAnswer,
    responses,
)
from outrider.endpoint.failures import ApiError, api_error
from outrider.endpoint.requests import ChatRequest, CompletionRequest, TextRequest
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import Parts, TextRunner
from outrider.text.completion import Completion
from outrider.text.completion import Request as TextOrder
from outrider.text.pieces import Piece
from outrider.text.prompts import make_request

Result = TypeVar("Result")
STREAM = "text/event-stream"
"""Content type of answers that are streamed."""

DONE = "[DONE]"
"""The last event of a stream."""

PING_SECONDS = 15
"""Silence after which a stream sends a comment, so that proxies keep it open."""

GRACE_SECONDS = 5
"""Seconds that open answers may go on after the first signal."""

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]

LEFT = 499
"""Status of an answer that nobody waits for any more."""


def openai_routes(manager: TargetManager) -> APIRouter:
    """Routes below /v1 that answer with the texts of the target in use."""
    router = APIRouter(prefix="/v1")

    @router.get("/models", responses=responses(ModelCards))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_described(await manager.get())]}

    @router.get("/models/{name:path}", responses=responses(ModelCard))
    async def one_model(name: str) -> dict[str, Any]:
        texts = await manager.get()
        _check_model(texts, name)
        return _described(texts)

    @router.post("/chat/completions", responses=responses(ChatAnswer, STREAM))
    async def chat(asked: ChatRequest, http: Request) -> Response:
        return await _answer(await manager.get(), asked, http, chat=True)

    @router.post("/completions", responses=responses(TextAnswer, STREAM))
    async def completions(asked: CompletionRequest, http: Request) -> Response:
        return await _answer(await manager.get(), asked, http, chat=False)

    @router.api_route("/{rest:path}", methods=METHODS, include_in_schema=False)
    async def unknown(rest: str, http: Request) -> Response:
        raise ApiError(404, f"{http.method} /v1/{rest} is not served: see /openapi.json")

    return router


def event_stream(events: AsyncGenerator[Any, None]) -> EventSourceResponse:
    """The answer that sends events as they come."""
    return EventSourceResponse(
        events, ping=PING_SECONDS, sep="\n", shutdown_grace_period=GRACE_SECONDS
    )


def _described(texts: TextRunner) -> dict[str, Any]:
    return {
        "id": texts.client.model,
        "object": "model",
        "created": texts.created,
        "owned_by": "outrider",
        "max_model_len": texts.client.length,
    }


async def _answer(
    texts: TextRunner, asked: ChatRequest | CompletionRequest, http: Request, *, chat: bool
) -> Response:
    _check_model(texts, asked.model)
    caller = http.state.caller
    texts.check_room(len(asked.prompts) * asked.choices, caller)
    orders = await _unless_gone(http, texts.read(partial(_orders, texts, asked)))
    if orders is None:
        return Response(status_code=LEFT)
    answer = Answer(chat, texts.client.model, asked.choices)
    if asked.stream:
        pieces = texts.pieces(orders, caller)
        events = _events(pieces, len(orders), answer, asked)
        first = await _unless_gone(http, _begun(events))
        if first is None:
            return Response(status_code=LEFT)
        return event_stream(_after(first, events))
    made = await _unless_gone(http, texts.whole(orders, caller))
    if made is None:
        return Response(status_code=LEFT)
    return Response(json.dumps(answer.whole(made)), media_type="application/json")


def _check_model(texts: TextRunner, name: str | None) -> None:
    if name not in (None, "", texts.client.model):
        raise ApiError(
            404,
            f"the model {name} is not served here: {texts.client.model} is",
            param="model",
            code="model_not_found",
        )


def _orders(
    texts: TextRunner, asked: ChatRequest | CompletionRequest, left: Event
) -> list[TextOrder] | None:
    """The texts of a request: n of each prompt, with seeds s, s + 1 and so on.

    left: set when nobody wants them any more; then none is returned
    """
    given = asked.parameters()
    seed = random_seed() // 2 if given.seed is None else given.seed
    orders = list[TextOrder]()
    for prompt in asked.prompts:
        if left.is_set():
            return None
        order = make_request(texts.client, prompt, replace(given, seed=seed))
        for more in range(asked.choices):
            params = replace(order.params, seed=seed + more)
            orders.append(replace(order, index=len(orders), params=params))
    return orders


async def _events(
    parts: Parts[Piece], count: int, answer: Answer, asked: TextRequest
) -> AsyncGenerator[str, None]:
    """The stream's events: chunks as JSON, then [DONE]."""
    made = dict[int, Completion]()
    async with aclosing(parts) as pieces:
        begun = False
        async for index, item in pieces:
            if not begun:
                begun = True
                for choice in range(count) if answer.chat else ():
                    yield json.dumps(answer.chunk(choice, "", first=True))
            if isinstance(item, Completion):
                made[index] = item
                yield json.dumps(answer.chunk(index, "", FINISHED[item.finish_reason]))
            else:
                yield json.dumps(answer.chunk(index, item.text))
    if asked.include_usage:
        yield json.dumps(answer.last([made[index] for index in range(count)]))
    yield DONE


async def _begun(events: AsyncGenerator[str, None]) -> asyncio.Future[str]:
    """The first event, once it came or a ping is due. An error before that has its own status."""
    first = asyncio.ensure_future(anext(events))
    try:
        await asyncio.wait((first,), timeout=PING_SECONDS)
        if first.done():
            first.result()
    except asyncio.CancelledError:
        first.cancel()
        raise
    return first


async def _after(
    first: asyncio.Future[str], events: AsyncGenerator[str, None]
) -> AsyncGenerator[str, None]:
    """All events. An error in the middle of the text becomes an event."""
    async with aclosing(events):
        try:
            yield await first
            async for event in events:
                yield event
        except OutriderError as error:
            yield json.dumps(api_error(error).body)
            yield DONE


async def _unless_gone(http: Request, made: Awaitable[Result]) -> Result | None:
    """The result, or None as soon as the client has left, which ends the work."""
    work, left = asyncio.ensure_future(made), asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for task in (work, left):
            task.cancel()


async def _left(http: Request) -> None:
    """Return when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
