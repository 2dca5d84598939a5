"""From a request to its answer, whole or streamed, for every interface."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, Protocol, TypeAlias, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException

from inference.errors import OutriderError
from inference.sampling import random_seed
from outrider.client.client import Client
from outrider.endpoint.interfaces.failures import UNFORESEEN, ApiError, api_error
from outrider.endpoint.interfaces.requests import ChatRequest, CompletionRequest
from outrider.endpoint.text_runner import Parts, TextRunner
from outrider.text.completion import Completion, Request
from outrider.text.pieces import Piece
from outrider.text.prompts import make_request
from outrider.text.runner import Task

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Part = TypeVar("Part", contravariant=True)
"""What the tasks of an interface report of their texts."""

TEMPERATURE = 1.0
"""Temperature of a request without one, unless the model has its own default."""

PING_SECONDS = 15
"""Seconds of silence after which a stream sends a comment, so that proxies keep it open."""

GRACE_SECONDS = 5
"""Seconds that open answers may continue after the first signal."""

DISCONNECTED = 499
"""Status of the answer to a client that has disconnected."""

StreamEvent: TypeAlias = "str | dict[str, str]"
"""The data of an event, or its name and its data."""


class Answer(Protocol[Part]):
    """Writes texts in the format of one interface. Texts have the index of their request."""

    def whole(self, texts: Sequence[Completion]) -> dict[str, Any]:
        """The answer to a request that is not streamed."""
        ...

    def begin(self) -> Iterable[StreamEvent]: ...

    def add(self, index: int, piece: Part) -> Iterable[StreamEvent]: ...

    def finish(self, index: int, text: Completion) -> Iterable[StreamEvent]:
        """The events after the last piece of a text."""
        ...

    def end(self, texts: Sequence[Completion]) -> Iterable[StreamEvent]: ...

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        """The events that end a stream in the middle of a text."""
        ...


MakeAnswer: TypeAlias = Callable[[Sequence[Request]], Answer[Any]]
MakeTask: TypeAlias = Callable[[Client, Request], Task[Any]]


def pieces_of(client: Client, request: Request) -> Task[Piece]:
    """The task that generates a text and reports its pieces."""
    return partial(client.complete, request)


def named_event(name: str, data: Mapping[str, Any]) -> StreamEvent:
    """An event with its name and its data."""
    return {"event": name, "data": json.dumps(data)}


def event_stream(events: AsyncGenerator[Any, None]) -> EventSourceResponse:
    """A streamed answer."""
    return EventSourceResponse(
        events, ping=PING_SECONDS, sep="\n", shutdown_grace_period=GRACE_SECONDS
    )


def check_model(texts: TextRunner, name: str | None) -> None:
    """Raise ApiError unless this model is served."""
    if name not in (None, "", texts.client.model):
        raise ApiError(
            404,
            f"the model {name} is not served here: {texts.client.model} is",
            param="model",
            code="model_not_found",
        )


async def answer_request(
    texts: TextRunner,
    body: ChatRequest | CompletionRequest,
    http: HttpRequest,
    make: MakeAnswer,
    make_task: MakeTask = pieces_of,
) -> Response:
    """Generate the texts of a request, and answer in the format of its interface."""
    check_model(texts, body.model)
    caller = http.state.caller
    texts.check_room(len(body.prompts) * body.choices, caller)
    requests = await _unless_gone(http, texts.read(partial(read_requests, texts, body)))
    answer, tasks = make(requests), [make_task(texts.client, request) for request in requests]
    parts = texts.run(tasks, caller, requests[0].params.grammar if requests else None)
    if body.stream:
        events = _events(parts, len(requests), answer)
        first = await _unless_gone(http, _begun(events))
        return event_stream(_after(first, events, answer))
    completed = await _unless_gone(http, completions(parts, len(requests)))
    return Response(json.dumps(answer.whole(completed)), media_type="application/json")


def read_requests(
    texts: TextRunner, body: ChatRequest | CompletionRequest, left: Event
) -> list[Request]:
    """The texts of a request: n of each prompt, with seeds s, s + 1 and so on.

    left: set when the client has disconnected, which ends the work
    """
    parameters = body.parameters()
    seed = random_seed() // 2 if parameters.seed is None else parameters.seed
    requests = list[Request]()
    for prompt in body.prompts:
        if left.is_set():
            break
        settled = replace(parameters, seed=seed).settled(texts.client.model, TEMPERATURE)
        request = make_request(texts.client.text_model, prompt, settled)
        for more in range(body.choices):
            params = replace(request.params, seed=seed + more)
            requests.append(replace(request, index=len(requests), params=params))
    return requests


async def completions(parts: Parts[Any], count: int) -> list[Completion]:
    """The finished texts in the order of their requests."""
    async with aclosing(parts):
        completed = {index: item async for index, item in parts if isinstance(item, Completion)}
    return [completed[index] for index in range(count)]


async def _events(
    parts: Parts[Any], count: int, answer: Answer[Any]
) -> AsyncGenerator[StreamEvent, None]:
    """The events of a stream."""
    completed = dict[int, Completion]()
    async with aclosing(parts) as pieces:
        begun = False
        async for index, item in pieces:
            if not begun:
                begun = True
                for event in answer.begin():
                    yield event
            if isinstance(item, Completion):
                completed[index] = item
                events = answer.finish(index, item)
            else:
                events = answer.add(index, item)
            for event in events:
                yield event
    for event in answer.end([completed[index] for index in range(count)]):
        yield event


async def _begun(events: AsyncGenerator[StreamEvent, None]) -> asyncio.Future[StreamEvent]:
    """The first event, once it is there or a ping is due. An earlier error has its own status."""
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
    first: asyncio.Future[StreamEvent],
    events: AsyncGenerator[StreamEvent, None],
    answer: Answer[Any],
) -> AsyncGenerator[StreamEvent, None]:
    """All events. An error in the middle of a text becomes an event."""
    async with aclosing(events):
        try:
            yield await first
            async for event in events:
                yield event
        except OutriderError as error:
            for event in answer.fail(api_error(error)):
                yield event
        # without an event a client could not tell any other fault from the end of its text
        except Exception:
            log.exception("a stream failed")
            for event in answer.fail(UNFORESEEN):
                yield event


async def _unless_gone(http: HttpRequest, result: Awaitable[Result]) -> Result:
    """The result. Ends the work as soon as the client leaves, and raises HTTPException."""
    work, left = asyncio.ensure_future(result), asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(DISCONNECTED)
        return work.result()
    finally:
        for task in (work, left):
            task.cancel()


async def _left(http: HttpRequest) -> None:
    """Return when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
