"""The chat page in a real browser: Debian's Chromium, which nothing here downloads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from grpc_comm.server.server import BackgroundServer, Target
from outrider.client.client import Client
from outrider.endpoint.target_manager import TargetManager
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from outrider.terminal.live_text import silent
from outrider.text.prompts import Parameters, make_request
from tests.outrider.endpoint.conftest import http_server
from tests.support.wire_fixtures import free_port

CHROMIUM = shutil.which("chromium")
QUIET = ("--no-sandbox", "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip
SIZES = {"desktop": (1280, 800), "tablet": (820, 1100), "phone": (390, 800)}
PATIENCE = 60_000
"""Milliseconds that a step may take on a busy machine."""

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def priced(target: str) -> Iterator[str]:
    """A server for which more than the target's hours has a price: there is something to steer."""
    options = ServeRole(
        target_host=target,
        batch=2,
        usd_per_hour=0.2,
        usd_per_kwh=0.4,
        usd_per_gb_up=0.0,
        usd_per_gb_down=0.09,
        draft_watts=300.0,
    )
    manager = TargetManager(options)
    manager.open()
    with closing(manager), http_server(manager) as address:
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
    opened.goto(priced)
    expect(opened.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
    return opened


class Mortal(NamedTuple):
    """A page with a text on its way, the target that makes it, and another for the same port."""

    page: Page
    client: Client
    target: BackgroundServer
    again: Target


Begin = Callable[[float], Mortal]  # its argument is the client's patience in seconds


def say(page: Page, text: str, tokens: int = 24) -> None:
    """Send a message, and wait until its answer is finished."""
    page.fill("#tokens", str(tokens))
    page.fill("#message", text)
    page.press("#message", "Enter")
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)


def test_a_chat_in_colour_drawn_and_counted(page: Page) -> None:
    say(page, "def main():", 60)
    expect(page.locator(".message.assistant .by-model").first).to_be_visible()
    expect(page.locator("#figures")).to_contain_text("60")
    expect(page.locator("#tree svg text").first).to_be_visible()
    expect(page.locator("#curve circle")).to_have_count(1)
    expect(page.locator("#where .bar")).to_have_count(2)
    expect(page.locator("#error")).to_be_hidden()


def test_the_slider_steers_the_target_in_use(page: Page) -> None:
    with page.expect_response("**/page/steer") as steered:
        page.locator("#cs").fill("50")
    assert steered.value.json()["weight"] == 0.5
    expect(page.locator("#cs-value")).to_have_text("50")
    page.locator("#cs").fill("0")


def test_where_all_positions_ask_for_the_same_the_page_has_no_knob_and_no_curve(
    context: BrowserContext, target: str
) -> None:
    manager = TargetManager(ServeRole(target_host=target, usd_per_hour=1.34))
    manager.open()
    with closing(manager), http_server(manager) as address:
        page = context.new_page()
        page.goto(address)
        note = page.locator("#cs-note")
        expect(note).to_contain_text("api_cost is proportional to time", timeout=PATIENCE)
        expect(page.locator("#cs")).to_be_hidden()
        expect(page.locator("#curve")).to_be_hidden()


def test_beside_target_only_shows_the_same_text_twice(page: Page) -> None:
    page.check("#beside")
    say(page, "class Queue:")
    texts = page.locator(".pair .text").all_inner_texts()
    assert len(texts) == 2
    assert texts[0] == texts[1] != ""


def test_a_reload_keeps_the_conversation(page: Page) -> None:
    say(page, "import os")
    before = page.locator(".message").all_inner_texts()
    page.reload()
    expect(page.locator(".message").first).to_be_visible()
    assert page.locator(".message").all_inner_texts() == before


def test_a_conversation_that_was_exported_can_be_imported(page: Page, tmp_path: Path) -> None:
    say(page, "import sys")
    with page.expect_download() as downloaded:
        page.click("#export")
    file = tmp_path / "conversation.json"
    downloaded.value.save_as(file)
    page.set_input_files("#import", file)
    expect(page.locator("#list li")).to_have_count(2)
    page.set_input_files("#import", {"name": "x.json", "mimeType": "text/json", "buffer": b"{}"})
    expect(page.locator("#error")).to_contain_text("outrider-conversation-1")


def test_stop_ends_the_text(page: Page, target: str) -> None:
    page.fill("#tokens", "900")
    page.fill("#message", "def main():")
    page.press("#message", "Enter")
    expect(page.locator(".message.assistant .text span").first).to_be_visible(timeout=PATIENCE)
    page.keyboard.press("Escape")
    expect(page.locator("#stop")).to_be_disabled(timeout=PATIENCE)
    expect(page.locator("#error")).to_be_hidden()


def test_a_server_can_be_added_started_and_stopped(page: Page, target: str) -> None:
    page.click("#open-servers")
    page.fill("#server-name", "here")
    page.fill("#server-address", target)
    page.click("#server-form button[type=submit]")
    page.get_by_role("button", name="Start here").click()
    expect(page.locator("#status")).to_contain_text(target, timeout=PATIENCE)
    page.get_by_role("button", name="Stop the target in use").click()
    expect(page.locator("#status")).to_contain_text("no target", timeout=PATIENCE)
    page.get_by_role("button", name="Start here").click()
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)


def texts_of(page: Page) -> list[dict[str, Any]]:
    """The messages of the newest conversation, as the browser keeps them."""
    kept = page.evaluate("localStorage.getItem('outrider.conversations')")
    messages: list[dict[str, Any]] = json.loads(kept)[0]["messages"]
    return messages


@pytest.fixture
def mortal(context: BrowserContext) -> Iterator[Begin]:
    """Begins a text with a target of its own."""
    with ExitStack() as stack:

        def begin(patience: float) -> Mortal:
            one, again = (load_target(TargetRole(port=port)) for port in [free_port()] * 2)
            target = stack.enter_context(BackgroundServer(one))
            manager = TargetManager(ServeRole(target_host=str(target.address), patience=patience))
            client = manager.open().client
            stack.callback(manager.close)
            page = context.new_page()
            page.add_init_script("Math.random = () => 0.5")  # a seed whose text is long
            page.goto(stack.enter_context(http_server(manager)))
            page.fill("#temperature", "0.8")
            page.fill("#tokens", "400")
            page.fill("#message", "def main():")
            page.press("#message", "Enter")
            text = page.locator(".message.assistant .text span").first
            expect(text).to_be_visible(timeout=PATIENCE)
            return Mortal(page, client, target, again)

        yield begin


def test_a_target_that_is_away_is_told_while_the_text_waits_for_it(mortal: Begin) -> None:
    page, _, target, again = mortal(120.0)
    target.stop()
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "true")
    with BackgroundServer(again):
        expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
        expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)
    assert "400 tokens" in texts_of(page)[-1]["note"]


def test_a_text_that_broke_off_is_kept_and_goes_on_as_it_would_have(mortal: Begin) -> None:
    page, client, target, again = mortal(0.0)
    target.stop()
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)
    page.reload()
    note = page.locator(".message.assistant .note")
    expect(note).to_contain_text("broken off: the target at", timeout=PATIENCE)
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    asked, broken = texts_of(page)
    assert asked == {"role": "user", "content": "def main():"}
    with BackgroundServer(again):
        expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
        page.get_by_role("button", name="Go on").click()
        expect(note).to_contain_text("tokens a forward", timeout=PATIENCE)
        expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)
        given = Parameters(400, 0.8, seed=broken["going"]["seed"])
        own = client.complete(make_request(client, [asked], given), silent, Event(), alone=True)
    made = texts_of(page)[1]
    assert 0 < len(broken["content"]) < len(made["content"])
    assert made["content"] == own.text
    assert "going" not in made


def test_a_page_that_is_left_keeps_what_came(mortal: Begin) -> None:
    page = mortal(0.0).page
    page.reload()
    expect(page.locator(".message.assistant .note")).to_contain_text("broken off")
    kept = texts_of(page)[1]
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)
    whole = texts_of(page)[1]
    assert whole["content"].startswith(kept["content"])
    assert "tokens a forward" in whole["note"]


def test_a_message_that_nobody_answered_stays_and_can_be_asked_again(mortal: Begin) -> None:
    page, _, target, again = mortal(0.0)
    target.stop()
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)
    page.click("#new")
    say(page, "import os")
    expect(page.locator("#error")).to_contain_text("127.0.0.1", timeout=PATIENCE)
    assert texts_of(page) == [{"role": "user", "content": "import os"}]
    page.get_by_role("button", name="Edit").click()
    expect(page.locator("#message")).to_have_value("import os")
    say(page, "import sys")
    expect(page.locator("#error")).to_contain_text("127.0.0.1", timeout=PATIENCE)
    assert texts_of(page) == [{"role": "user", "content": "import sys"}]
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    with BackgroundServer(again):
        expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
        page.get_by_role("button", name="Ask again").click()
        note = page.locator(".message.assistant .note")
        expect(note).to_contain_text("24 tokens", timeout=PATIENCE)


HOSTILE = (
    '<img src=x onerror="document.title=1"> <script>document.title=1</script> '
    "[click](javascript:document.title=1) ![image](http://elsewhere.example/a.png) **bold** `code`"
)


def test_text_never_becomes_markup_and_nothing_is_asked_of_other_hosts(
    context: BrowserContext, page: Page, priced: str
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    say(page, HOSTILE)
    page.evaluate(
        """async (text) => {
            const { render } = await import("./markdown.js");
            const place = document.createElement("div");
            place.id = "hostile";
            document.body.append(place);
            render(text, [{ end: 10, by: "model" }, { end: text.length, by: "target" }], place);
        }""",
        HOSTILE,
    )
    place = page.locator("#hostile")
    assert place.locator("img, script").count() == 0
    assert place.locator("a").count() == 1  # the image's address, as a link that nobody follows
    assert place.locator("strong").inner_text() == "bold"
    assert page.title() == "Outrider"
    assert all(url.startswith((priced, "blob:")) for url in asked)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_cut_off_at_any_size_and_theme(
    browser: Browser, priced: str, size: str, theme: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(priced)
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
    say(page, "def main():")
    page.screenshot(path=tmp_path / f"{size}-{theme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#message")).to_be_in_viewport()
    expect(page.locator("#send")).to_be_in_viewport()
    context.close()


def test_every_control_has_a_name_and_can_be_reached_by_the_keyboard(page: Page) -> None:
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, textarea")].filter((one) =>
            !one.textContent.trim() && !one.getAttribute("aria-label")
            && !one.labels?.length && one.type !== "file").map((one) => one.id)"""
    )
    assert nameless == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the message"
