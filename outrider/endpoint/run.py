"""`outrider serve`: connects, loads the draft, and serves HTTP until a signal.

The application has the OpenAI and Anthropic interfaces, the page, health, metrics and version, with
one check of keys.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from fastapi import Request as HttpRequest
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from grpc_comm.client.connection import CONNECT_SECONDS
from grpc_comm.transport import Address
from inference.command import say
from inference.errors import OutriderError, Unavailable
from inference.loop.draft_thread import take_short_turns
from outrider.endpoint.access import CallerCheck, RequestBounds, allowed_hosts, read_keys
from outrider.endpoint.interfaces.answering import answer_request, check_model, read_requests
from outrider.endpoint.interfaces.chat_answers import ChatWriter, TextWriter
from outrider.endpoint.interfaces.failures import REFUSALS, ApiError, add_failures
from outrider.endpoint.interfaces.messages import MessagesRequest, MessageWriter
from outrider.endpoint.interfaces.requests import ChatRequest, CompletionRequest
from outrider.endpoint.interfaces.responses import ResponseRequest, ResponseWriter
from outrider.endpoint.page_routes import add_page, page_routes
from outrider.endpoint.server import HttpServer, bounded, listening
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import TextRunner
from outrider.installation import outrider_version
from outrider.options.roles import ServeRole

SERVING = "serving "
"""Prefix of the stderr line with the server's address, printed once it accepts requests."""

MAX_CONNECTIONS = 512
"""Maximum concurrent connections of HTTP clients."""


def serve_http(
    options: ServeRole, when_ready: Callable[[str], object] = lambda address: None
) -> int:
    """Serve HTTP until a signal. Returns 0.

    when_ready: called with the page's address once the server accepts requests
    """
    keys, admin_keys = (
        read_keys(Path(path) if path else None, flag)
        for flag, path in (("--api_keys", options.api_keys), ("--admin_keys", options.admin_keys))
    )
    manager = TargetManager(options)
    take_short_turns()
    with listening(Address(options.http_host, options.http_port)) as bound:
        try:
            manager.open()
        except Unavailable as error:  # a target may start later, or be chosen on the page
            say(f"note: {error}; every request tries again")
        app = create_app(
            manager,
            keys,
            admin_keys=admin_keys,
            hosts=allowed_hosts(options.http_host, options.origins),
            origins=options.origins,
        )
        scheme = "https" if options.http_cert else "http"
        address = f"{scheme}://{Address(options.http_host, bound.getsockname()[1])}"

        def announce() -> None:
            say(_ready_line(manager, address))
            when_ready(address)

        server = HttpServer(
            app,
            bounded(MAX_CONNECTIONS),
            announce,
            ssl_certfile=options.http_cert,
            ssl_keyfile=options.http_key,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore)
        server.run([bound])
    return 0


def _ready_line(manager: TargetManager, address: str) -> str:
    """Return the line with the address, which users and parent processes read."""
    client = manager.texts.client if manager.texts is not None else None
    who = f"{client.model}, draft: {client.draft or 'none'}" if client else "no target yet"
    return f"{SERVING}{address}/v1 ({who}); Ctrl-C ends"


def _ignore(_number: int, _frame: object) -> None:
    """Ignore the signal that ended the server, which uvicorn raises again when it ends."""


def create_app(
    manager: TargetManager,
    keys: Sequence[str] = (),
    *,
    admin_keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> FastAPI:
    """Return the application that answers requests with the target in use.

    Every route but /health and the page's files requires a key, if keys are set. For keys,
    admin_keys and origins see CallerCheck.

    hosts: host names that the server accepts, in lower case; empty to accept any
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(manager.close, "the server ends")

    app = FastAPI(
        title="Outrider",
        version=outrider_version(),
        lifespan=lifespan,
        responses=REFUSALS,
        docs_url=None,  # its page loads scripts from another site
        redoc_url=None,
    )
    add_failures(app)
    callers = CallerCheck(keys, admin_keys, origins)
    checked = [Depends(callers.check)]
    app.include_router(text_routes(manager), dependencies=checked)
    app.include_router(page_routes(manager, [Depends(callers.admin)]), dependencies=checked)

    @app.get("/health")
    async def health() -> Response:
        try:
            texts = await manager.get()
            await asyncio.to_thread(texts.client.target.probe, CONNECT_SECONDS)
        except (ApiError, OutriderError) as error:
            return JSONResponse({"status": "target unavailable", "reason": str(error)}, 503)
        return JSONResponse({"status": "ok"})

    @app.get("/version", dependencies=checked)
    async def version() -> dict[str, str]:
        return {"version": outrider_version()}

    @app.get("/metrics", dependencies=checked, response_class=Response)
    async def metrics() -> Response:
        texts = await manager.get()
        return Response(texts.metrics_page(), media_type=CONTENT_TYPE_LATEST)

    add_page(app)
    app.add_middleware(RequestBounds, hosts=hosts)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def text_routes(manager: TargetManager) -> APIRouter:
    """Return the routes that answer with outputs of the target in use."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_described(await manager.get())]}

    @router.get("/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        texts = await manager.get()
        check_model(texts, name)
        return _described(texts)

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, http: HttpRequest) -> Response:
        return await answer_request(manager, body, http, ChatWriter)

    @router.post("/completions")
    async def completions(body: CompletionRequest, http: HttpRequest) -> Response:
        return await answer_request(manager, body, http, TextWriter)

    @router.post("/responses")
    async def response(body: ResponseRequest, http: HttpRequest) -> Response:
        return await answer_request(manager, body.chat(), http, ResponseWriter)

    @router.post("/messages")
    async def messages(body: MessagesRequest, http: HttpRequest) -> Response:
        return await answer_request(manager, body.chat(), http, MessageWriter)

    @router.post("/messages/count_tokens")
    async def count(body: MessagesRequest) -> dict[str, int]:
        texts, chat = await manager.get(), body.chat()
        check_model(texts, chat.model)
        requests = await texts.read(partial(read_requests, texts, chat))
        return {"input_tokens": sum(len(request.ids) for request in requests)}

    return router


def _described(texts: TextRunner) -> dict[str, Any]:
    return {
        "id": texts.client.model,
        "object": "model",
        "created": texts.created,
        "owned_by": "outrider",
        "max_model_len": texts.client.length,
    }
