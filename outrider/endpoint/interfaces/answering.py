"""Answers requests of every interface, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any, TypeAlias, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException

from inference.errors import OutriderError
from inference.sampling import random_seed
from outrider.client.client import Client
from outrider.endpoint.interfaces.failures import ApiError, api_error
from outrider.endpoint.interfaces.requests import ChatRequest, CompletionRequest
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import Parts, TextRunner
from outrider.text.completion import Completion, Request
from outrider.text.prompts import make_request
from outrider.text.runner import Task

log = logging.getLogger(__name__)

Result = TypeVar("Result")

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


class Answer:
    """Writes outputs in the format of one interface. Indices are those of the requests."""

    def __init__(self, client: Client, body: Any, requests: Sequence[Request]) -> None:
        self._client, self._body, self._requests = client, body, requests

    def task(self, request: Request) -> Task[Any]:
        """Return the task that runs a request. add() receives the parts that it reports."""
        return partial(self._client.complete, request)

    def whole(self, texts: Sequence[Completion]) -> dict[str, Any]:
        """Return the answer to a request that is not streamed."""
        raise NotImplementedError

    def begin(self) -> Iterable[StreamEvent]:
        return ()

    def add(self, index: int, part: Any) -> Iterable[StreamEvent]:
        """Return the events of a part of an output, which is a Piece unless task() differs."""
        raise NotImplementedError

    def finish(self, index: int, text: Completion) -> Iterable[StreamEvent]:
        """Return the events that follow the last part of an output."""
        raise NotImplementedError

    def end(self, texts: Sequence[Completion]) -> Iterable[StreamEvent]:
        return ()

    def fail(self, error: ApiError) -> Iterable[StreamEvent]:
        """Return the events that end a stream after an error in the middle of an output."""
        raise NotImplementedError


def named_event(name: str, data: Mapping[str, Any]) -> StreamEvent:
    """Return an event with this name and data."""
    return {"event": name, "data": json.dumps(data)}


def check_model(texts: TextRunner, name: str | None) -> None:
    """Raise ApiError unless the model with this name is served."""
    model = texts.client.model
    if name not in (None, "", model):
        words = f"the model {name} is not served here: {model} is"
        raise ApiError(404, words, param="model", code="model_not_found")


async def answer_request(
    manager: TargetManager,
    body: ChatRequest | CompletionRequest,
    http: HttpRequest,
    interface: type[Answer],
) -> Response:
    """Generate the outputs that a request asks for, and answer in its interface's format."""
    texts = await manager.get()
    check_model(texts, body.model)
    caller = http.state.caller
    texts.check_room(len(body.prompts) * body.choices, caller)
    requests = await _unless_gone(http, texts.read(partial(read_requests, texts, body)))
    answer = interface(texts.client, body, requests)
    parts = texts.run([*map(answer.task, requests)], caller, requests[0].params.grammar)
    if not body.stream:
        completed = await _unless_gone(http, completions(parts))
        return Response(json.dumps(answer.whole(completed)), media_type="application/json")
    first = await _unless_gone(http, _first(parts))
    events = _events(first, parts, answer)
    return EventSourceResponse(
        events, ping=PING_SECONDS, sep="\n", shutdown_grace_period=GRACE_SECONDS
    )


def read_requests(
    texts: TextRunner, body: ChatRequest | CompletionRequest, disconnected: Event
) -> list[Request]:
    """Return a request for each output: n for each prompt, with seeds s, s + 1 and so on.

    disconnected: set when the client has disconnected; tokenizing then ends
    """
    parameters = body.parameters()
    seed = random_seed() // 2 if parameters.seed is None else parameters.seed
    settled = replace(parameters, seed=seed).settled(texts.client.model, TEMPERATURE)
    requests = list[Request]()
    for prompt in body.prompts:
        if disconnected.is_set():
            break
        request = make_request(texts.client.text_model, prompt, settled)
        for number in range(body.choices):
            params = replace(request.params, seed=seed + number)
            requests.append(replace(request, index=len(requests), params=params))
    return requests


async def completions(parts: Parts[Any]) -> list[Completion]:
    """Return the completions in the order of their requests."""
    async with aclosing(parts):
        completed = {index: part async for index, part in parts if isinstance(part, Completion)}
    return [completed[index] for index in sorted(completed)]


async def _first(parts: Parts[Any]) -> asyncio.Future[tuple[int, Any]]:
    """Wait for the first part, or until a ping is due. Raises an error that occurs until then."""
    first = asyncio.ensure_future(anext(parts))
    try:
        await asyncio.wait((first,), timeout=PING_SECONDS)
        if first.done():
            first.result()
    except asyncio.CancelledError:
        first.cancel()
        raise
    return first


async def _events(
    first: asyncio.Future[tuple[int, Any]], parts: Parts[Any], answer: Answer
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a stream. An error in the middle of an output becomes an event."""
    completed = dict[int, Completion]()

    def written(index: int, part: Any) -> Iterable[StreamEvent]:
        if not isinstance(part, Completion):
            return answer.add(index, part)
        completed[index] = part
        return answer.finish(index, part)

    async with aclosing(parts):
        try:
            index, part = await first
            for event in answer.begin():
                yield event
            for event in written(index, part):
                yield event
            async for index, part in parts:
                for event in written(index, part):
                    yield event
            for event in answer.end([completed[index] for index in sorted(completed)]):
                yield event
        # without an event, clients would take a fault for the end of the output
        except Exception as error:
            if not isinstance(error, OutriderError):
                log.exception("a stream failed")
            for event in answer.fail(api_error(error)):
                yield event


async def _unless_gone(http: HttpRequest, result: Awaitable[Result]) -> Result:
    """Return the result. If the client disconnects, cancel the work and raise HTTPException."""
    work, disconnect = asyncio.ensure_future(result), asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise HTTPException(DISCONNECTED)
        return work.result()
    finally:
        for task in (work, disconnect):
            task.cancel()


async def _disconnect(http: HttpRequest) -> None:
    """Return when the client has closed its connection."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
