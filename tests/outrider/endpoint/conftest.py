"""A target with the embedded pair, and a server in front of it, for the tests of this room: they
start once in a run.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address
from outrider.endpoint.access import allowed_hosts
from outrider.endpoint.run import create_app
from outrider.endpoint.server import HttpServer, listening
from outrider.endpoint.target_manager import MAX_REQUESTS, TargetManager
from outrider.endpoint.text_runner import TextRunner
from outrider.options.draft_flags import DEFAULT_SOURCES
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from outrider.text.completion import Completion, silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import Prompt, make_request
from tests.support.chat_page import CHROMIUM, PATIENCE
from tests.support.wire_fixtures import WAIT


@contextmanager
def http_server(
    manager: TargetManager,
    keys: tuple[str, ...] = (),
    admin_keys: tuple[str, ...] = (),
    origins: tuple[str, ...] = (),
    connections: int = 512,
) -> Iterator[str]:
    """Serve a manager on a free port of this machine; yields the address as http://HOST:PORT.

    The manager stays open.
    """
    hosts = allowed_hosts("127.0.0.1", origins)
    app = create_app(manager, keys, admin_keys=admin_keys, hosts=hosts, origins=origins)
    bound = listening(Address("127.0.0.1", 0))
    bound.listen()  # a request may come before the thread runs
    server = HttpServer(app, connections, lifespan="off")
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WAIT)  # open answers end after GRACE_SECONDS
        bound.close()
        assert not thread.is_alive(), "the server does not end"


class Opened(NamedTuple):
    """A manager with its target open, and a server in front of it."""

    manager: TargetManager
    texts: TextRunner
    address: str


@contextmanager
def opened(
    target: str,
    keys: tuple[str, ...] = (),
    admin_keys: tuple[str, ...] = (),
    max_requests: int = MAX_REQUESTS,
    **options: Any,
) -> Iterator[Opened]:
    """No draft is loaded unless the options say so."""
    role = ServeRole(target_host=target, **{"draft": "none"} | options)
    manager = TargetManager(role, max_requests)
    texts = manager.open()
    with closing(manager), http_server(manager, keys, admin_keys) as address:
        yield Opened(manager, texts, address)


def stream_data(answer: httpx.Response) -> list[dict[str, Any]]:
    """The data of a stream's events, except for its end mark."""
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def page_events(http: httpx.Client, asked: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The events that the page receives of a greedy text, in order."""
    answer = http.post("/page/texts", json={"temperature": 0} | asked)
    names = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    return list(zip(names, stream_data(answer), strict=True))


@contextmanager
def sent(server: str, *parts: bytes) -> Iterator[socket.socket]:
    """A connection over which these bytes were sent."""
    host, port = server.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=WAIT) as connection:
        for part in parts:
            connection.sendall(part)
        yield connection


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    came = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            came += chunk
    return came


@pytest.fixture(scope="session")
def target() -> Iterator[str]:
    """The address of a target with eight rows."""
    with BackgroundServer(load_target(TargetRole(port=0, batch=8))) as server:
        yield str(server.address)


@pytest.fixture(scope="session")
def manager(target: str) -> Iterator[TargetManager]:
    opened = TargetManager(ServeRole(target_host=target, batch=2), max_requests=40)
    opened.open()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def texts(manager: TargetManager) -> TextRunner:
    assert manager.texts is not None
    return manager.texts


@pytest.fixture(scope="session")
def server(manager: TargetManager) -> Iterator[str]:
    with http_server(manager) as address:
        yield address


@pytest.fixture(scope="session")
def http(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=WAIT) as client:
        yield client


@pytest.fixture(scope="session")
def api(server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="not needed", max_retries=0)


def own(texts: TextRunner, prompt: Prompt, **parameters: Any) -> Completion:
    """The target's own text, made without any draft."""
    request = make_request(texts.client.text_model, prompt, Parameters(**parameters))
    return texts.client.complete(request, silent, threading.Event(), alone=True)


GREEDY = json.dumps({"temperature": 0})
QUIET = ("--no-sandbox", "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def priced(target: str) -> Iterator[str]:
    """A server for which more than the target's hours has a price: there is something to steer."""
    prices = {"usd_per_hour": 0.2, "usd_per_kwh": 0.4, "usd_per_gb": 0.09, "draft_watts": 300.0}
    options: dict[str, Any] = {"draft": DEFAULT_SOURCES, "batch": 2} | prices
    with opened(target, **options) as (*_, address):
        yield address


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context()
    made.set_default_timeout(PATIENCE)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext, priced: str) -> Page:
    opened = context.new_page()
    opened.add_init_script(f"localStorage['outrider.settings'] ??= '{GREEDY}'")
    opened.goto(priced)
    expect(opened.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
    return opened
