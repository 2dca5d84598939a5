"""Role serve: connects, loads the draft, and listens for HTTP until a signal."""

from __future__ import annotations

import signal
import socket
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from grpc_comm.transport import Address
from inference.command import say
from inference.draft_thread import take_short_turns
from inference.errors import InvalidRequest, Unavailable
from outrider.client.connecting import print_models
from outrider.endpoint.access import allowed_hosts, read_keys
from outrider.endpoint.app import create_app
from outrider.endpoint.connections import BoundedConnection
from outrider.endpoint.desk import Desk
from outrider.endpoint.openai_routes import GRACE_SECONDS
from outrider.options.roles import ServeRole

SERVING = "serving "
"""Start of the stderr line with the server's address. It is printed once requests are taken."""


def serve_http(options: ServeRole) -> int:
    """Serve until a signal. Returns 0."""
    if options.connection.list_models:
        print_models(options.connection)
        return 0
    keys, admin_keys = (
        read_keys(Path(path) if path else None, flag)
        for flag, path in (("--api_keys", options.api_keys), ("--admin_keys", options.admin_keys))
    )
    desk = Desk(options)
    take_short_turns()
    with listening(Address(options.http_host, options.http_port)) as bound:
        try:
            desk.open()
        except Unavailable as error:  # it may come later, or be named on the page
            say(f"note: {error}; it is looked for at every request")
        app = create_app(
            desk,
            keys,
            admin_keys=admin_keys,
            hosts=allowed_hosts(options.http_host, _listed(options.http_names)),
            origins=_listed(options.origins),
        )
        config = http_config(
            app,
            options.http_connections,
            ssl_certfile=options.http_cert,
            ssl_keyfile=options.http_key,
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _ended)
        _Server(config, _said(desk, bound)).run([bound])
    return 0


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


def http_config(app: FastAPI, connections: int, **more: Any) -> uvicorn.Config:
    """How the application is served, over so many connections at the same time."""
    return uvicorn.Config(
        app,
        http=partial(BoundedConnection, connections),  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS + 1,
        **more,
    )


def listening(address: Address) -> socket.socket:
    """A socket bound to the address. Raises InvalidRequest where that fails."""
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


def _said(desk: Desk, bound: socket.socket) -> str:
    """The line that names the address, for people and for programs that start this one."""
    scheme = "https" if desk.options.http_cert else "http"
    address = Address(desk.options.http_host, bound.getsockname()[1])
    client = desk.texts.client if desk.texts is not None else None
    who = f"{client.model}, drafted by {client.draft or 'nobody'}" if client else "no target yet"
    return f"{SERVING}{scheme}://{address}/v1 ({who}); Ctrl-C ends"


def _ended(_number: int, _frame: object) -> None:
    """Hear a signal again that ended the server: uvicorn raises it anew at its end."""


class _Server(uvicorn.Server):
    """A server that says a line once it takes requests."""

    def __init__(self, config: uvicorn.Config, line: str) -> None:
        super().__init__(config)
        self._line = line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        say(self._line)
