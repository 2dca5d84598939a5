"""`outrider serve`: connects, loads the draft, and serves HTTP until a signal.

The application has the OpenAI and Anthropic interfaces, the page, health, metrics and version, with
one check of keys.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from grpc_comm.client.connection import CONNECT_SECONDS
from grpc_comm.transport import Address
from inference.command import say
from inference.errors import InvalidRequest, OutriderError, Unavailable
from inference.loop.draft_thread import take_short_turns
from outrider.endpoint.access import (
    BodyBound,
    HeadCheck,
    KeyCheck,
    OriginCheck,
    allowed_hosts,
    read_keys,
)
from outrider.endpoint.connections import (
    ACCEPTED,
    QUEUED,
    BoundedConnection,
    OutOfDescriptors,
    bounded,
)
from outrider.endpoint.interfaces.answering import GRACE_SECONDS
from outrider.endpoint.interfaces.failures import REFUSALS, ApiError, add_failures
from outrider.endpoint.interfaces.text_routes import text_routes
from outrider.endpoint.page_routes import add_page, page_routes
from outrider.endpoint.target_manager import TargetManager
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
        config = http_config(
            app,
            bounded(MAX_CONNECTIONS),
            ssl_certfile=options.http_cert,
            ssl_keyfile=options.http_key,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ignore)
        address = _address(options, bound)
        _Server(config, _ready_line(manager, address), partial(when_ready, address)).run([bound])
    return 0


def http_config(app: FastAPI, connections: int, **settings: Any) -> uvicorn.Config:
    """Return the server's configuration. connections: maximum concurrent connections"""
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, connections),  # type: ignore[arg-type]
        ws="none",
        loop="asyncio",  # uvloop drops the answer to a half-closed client
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS + 1,
        backlog=ACCEPTED,
        **settings,
    )


def listening(address: Address) -> socket.socket:
    """Return a socket bound to the address. Raises InvalidRequest if binding fails."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise InvalidRequest(
            f"cannot listen on {address}: {error.strerror or error}; --http_port 0 takes a free "
            "port"
        ) from error
    return bound


def _address(options: ServeRole, bound: socket.socket) -> str:
    """Return the page's address."""
    scheme = "https" if options.http_cert else "http"
    return f"{scheme}://{Address(options.http_host, bound.getsockname()[1])}"


def _ready_line(manager: TargetManager, address: str) -> str:
    """Return the line with the address, which users and parent processes read."""
    client = manager.texts.client if manager.texts is not None else None
    who = f"{client.model}, draft: {client.draft or 'none'}" if client else "no target yet"
    return f"{SERVING}{address}/v1 ({who}); Ctrl-C ends"


def _ignore(_number: int, _frame: object) -> None:
    """Ignore the signal that ended the server, which uvicorn raises again when it ends."""


class _Server(uvicorn.Server):
    """A server that prints a line and calls a function once it accepts requests."""

    def __init__(self, config: uvicorn.Config, line: str, when_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._line, self._when_ready = line, when_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(OutOfDescriptors(self.server_state))
        await super().startup(sockets)
        for bound in sockets or []:
            bound.listen(QUEUED)  # replaces ACCEPTED, which uvicorn has set
        say(self._line)
        self._when_ready()


def create_app(
    manager: TargetManager,
    keys: Sequence[str] = (),
    *,
    admin_keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
) -> FastAPI:
    """Return the application that answers requests with the target in use.

    keys: every route but /health requires one of them; empty: no key is required
    admin_keys: further keys; if any keys are set, changing the target requires one of these
    hosts: host names that the server accepts, in lower case; empty to accept any
    origins: origins of other sites' pages that may call the server
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
    key_check = KeyCheck(keys, admin_keys)
    checked = [Depends(OriginCheck(origins).check), Depends(key_check.check)]
    app.include_router(text_routes(manager), dependencies=checked)
    app.include_router(page_routes(manager, [Depends(key_check.admin)]), dependencies=checked)
    _add_health(app, manager)

    @app.get("/version", dependencies=checked)
    async def version() -> dict[str, str]:
        return {"version": outrider_version()}

    @app.get("/metrics", dependencies=checked, response_class=Response)
    async def metrics() -> Response:
        texts = await manager.get()
        return Response(texts.metrics_page(), media_type=CONTENT_TYPE_LATEST)

    add_page(app)
    app.add_middleware(BodyBound)
    app.add_middleware(HeadCheck, names=hosts)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    return app


def _add_health(app: FastAPI, manager: TargetManager) -> None:
    """Add /health, which answers 200 while the target answers, else 503 with the reason."""

    @app.get("/health")
    async def health() -> Response:
        try:
            texts = await manager.get()
            await asyncio.to_thread(texts.client.target.probe, CONNECT_SECONDS)
        except (ApiError, OutriderError) as error:
            content: dict[str, Any] = {"status": "target unavailable", "reason": str(error)}
            return JSONResponse(content, 503)
        return JSONResponse({"status": "ok"})
