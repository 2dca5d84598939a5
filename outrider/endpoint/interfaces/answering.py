"""Answers requests of every interface, whole or streamed."""

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
"""A part of an output, as an interface's tasks report it: a Piece, for example."""

TEMPERATURE = 1.0
"""Default temperature, unless the model has its own."""

PING_SECONDS = 15
"""Seconds without an event after which a stream sends a comment, so that proxies keep it open."""

GRACE_SECONDS = 5
"""Seconds for which open answers may continue after the first signal to end."""

DISCONNECTED = 499
"""Status code of the answer to a client that has disconnected."""

StreamEvent: TypeAlias = "str | dict[str, str]"
"""An event's data as a string, or its name and its data."""


class Answer(Protocol[Part]):
    """Writes outputs in the format of one interface. Indices are those of the requests."""

    def whole(self, texts: Sequence[Completion]) -> dict[str, Any]:
        """Return the answer to a request that is not streamed."""
        ...

    def begin(self) -> Iterable[StreamEvent]: ...

    def add(self, index: int, piece: Part) -> Iterable[StreamEvent]: ...

    def finish(self, index: int, text: Completion) -> Iterable[StreamEvent]:
        """Return the events that follow the last piece of an output."""
        ...

    def end(self, texts: Sequence[Completion]) -> Iterable[StreamEvent]: ...

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        """Return the events that end a stream after an error in the middle of an output."""
        ...


MakeAnswer: TypeAlias = Callable[[Sequence[Request]], Answer[Any]]
MakeTask: TypeAlias = Callable[[Client, Request], Task[Any]]


def pieces_of(client: Client, request: Request) -> Task[Piece]:
    """Return the task that runs a request and reports the pieces of its output."""
    return partial(client.complete, request)


def named_event(name: str, data: Mapping[str, Any]) -> StreamEvent:
    """Return an event with this name and data."""
    return {"event": name, "data": json.dumps(data)}


def event_stream(events: AsyncGenerator[Any, None]) -> EventSourceResponse:
    """Return a streamed answer."""
    return EventSourceResponse(
        events, ping=PING_SECONDS, sep="\n", shutdown_grace_period=GRACE_SECONDS
    )


def check_model(texts: TextRunner, name: str | None) -> None:
    """Raise ApiError unless the model with this name is served."""
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
    """Generate the outputs that a request asks for, and answer in its interface's format."""
    check_model(texts, body.model)
    caller = http.state.caller
    texts.check_room(len(body.prompts) * body.choices, caller)
    requests = await _unless_gone(http, texts.read(partial(read_requests, texts, body)))
    answer, tasks = make(requests), [make_task(texts.client, request) for request in requests]
    stream = texts.run(tasks, caller, requests[0].params.grammar if requests else None)
    if body.stream:
        events = _events(stream, len(requests), answer)
        first = await _unless_gone(http, _begun(events))
        return event_stream(_after(first, events, answer))
    completed = await _unless_gone(http, completions(stream, len(requests)))
    return Response(json.dumps(answer.whole(completed)), media_type="application/json")


def read_requests(
    texts: TextRunner, body: ChatRequest | CompletionRequest, disconnected: Event
) -> list[Request]:
    """Return a request for each output: n for each prompt, with seeds s, s + 1 and so on.

    disconnected: set when the client has disconnected; tokenizing then ends
    """
    parameters = body.parameters()
    seed = random_seed() // 2 if parameters.seed is None else parameters.seed
    requests = list[Request]()
    for prompt in body.prompts:
        if disconnected.is_set():
            break
        settled = replace(parameters, seed=seed).settled(texts.client.model, TEMPERATURE)
        request = make_request(texts.client.text_model, prompt, settled)
        for number in range(body.choices):
            params = replace(request.params, seed=seed + number)
            requests.append(replace(request, index=len(requests), params=params))
    return requests


async def completions(stream: Parts[Any], count: int) -> list[Completion]:
    """Return the completions in the order of their requests."""
    async with aclosing(stream):
        completed = {index: item async for index, item in stream if isinstance(item, Completion)}
    return [completed[index] for index in range(count)]


async def _events(
    stream: Parts[Any], count: int, answer: Answer[Any]
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a stream."""
    completed = dict[int, Completion]()
    async with aclosing(stream) as pieces:
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
    """Wait for the first event, or until a ping is due. Raises an error that occurs until then."""
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
    """Yield all events. An error in the middle of an output becomes an event."""
    async with aclosing(events):
        try:
            yield await first
            async for event in events:
                yield event
        except OutriderError as error:
            for event in answer.fail(api_error(error)):
                yield event
        # without an event, clients would take any other fault for the end of the output
        except Exception:
            log.exception("a stream failed")
            for event in answer.fail(UNFORESEEN):
                yield event


async def _unless_gone(http: HttpRequest, result: Awaitable[Result]) -> Result:
    """Return the result. If the client disconnects, cancel the work and raise HTTPException."""
    work, disconnect = asyncio.ensure_future(result), asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(DISCONNECTED)
        return work.result()
    finally:
        for task in (work, disconnect):
            task.cancel()


async def _left(http: HttpRequest) -> None:
    """Return when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
