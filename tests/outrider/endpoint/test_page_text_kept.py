"""The chat page loses no text: the target goes, the page is left, a conversation is deleted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from grpc_comm.server.server import BackgroundServer, Target
from outrider.client.client import Client
from outrider.endpoint.target_manager import TargetManager
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from outrider.text.completion import silent
from outrider.text.parameters import Parameters
from outrider.text.prompts import make_request
from tests.outrider.endpoint.conftest import http_server
from tests.support.chat_page import IN_A_BROWSER, PATIENCE, kept, say, until_idle
from tests.support.wire_fixtures import free_port

pytestmark = [pytest.mark.extended, IN_A_BROWSER]

SETTINGS = {"temperature": 0.8, "max_tokens": 400}


class Mortal(NamedTuple):
    """A page with a text on its way, the target that makes it, and another for the same port."""

    page: Page
    client: Client
    target: BackgroundServer
    again: Target


Begin = Callable[[float], Mortal]  # its argument is the client's patience in seconds


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
            settings = json.dumps(json.dumps(SETTINGS))
            page.add_init_script(f"localStorage.setItem('outrider.settings', {settings})")
            page.add_init_script("Math.random = () => 0.5")  # a seed whose text is long
            page.goto(stack.enter_context(http_server(manager)))
            page.fill("#message", "def main():")
            page.press("#message", "Enter")
            expect(page.locator(".message.assistant .block").first).to_be_visible(timeout=PATIENCE)
            return Mortal(page, client, target, again)

        yield begin


def messages(page: Page) -> list[dict[str, Any]]:
    """The messages of the newest conversation, as the browser keeps them."""
    found: list[dict[str, Any]] = kept(page)[0]["messages"]
    return found


def test_a_target_that_is_away_is_told_while_the_text_waits_for_it(mortal: Begin) -> None:
    page, _, target, again = mortal(120.0)
    target.stop()
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "true")
    with BackgroundServer(again):
        expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
        until_idle(page)
    assert "400 tokens" in messages(page)[-1]["note"]


def test_a_text_that_broke_off_goes_on_by_itself_as_it_would_have(mortal: Begin) -> None:
    page, client, target, again = mortal(0.0)
    target.stop()
    until_idle(page)
    page.reload()
    note = page.locator(".message.assistant .note")
    expect(note).to_contain_text("interrupted: the target at", timeout=PATIENCE)
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    asked, broken = messages(page)
    assert asked == {"role": "user", "content": "def main():"}
    with BackgroundServer(again):
        expect(note).to_contain_text("tokens per forward pass", timeout=PATIENCE)
        until_idle(page)
        given = Parameters(400, 0.8, seed=broken["going"]["seed"])
        own = client.complete(
            make_request(client.text_model, [asked], given), silent, Event(), alone=True
        )
    made = messages(page)[1]
    assert 0 < len(broken["content"]) < len(made["content"])
    assert made["content"] == own.text
    assert "400 tokens" in made["note"]


def test_a_text_that_was_left_goes_on_and_one_that_was_stopped_or_cut_only_when_told(
    mortal: Begin,
) -> None:
    page = mortal(0.0).page
    page.reload()
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "true", timeout=PATIENCE)
    page.keyboard.press("Escape")
    until_idle(page)
    expect(page.locator("#stop")).to_be_disabled()
    expect(page.locator("#error")).to_be_hidden()
    stopped = messages(page)[1]
    page.reload()
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
    assert messages(page)[1] == stopped
    note = page.locator(".message.assistant .note")
    for tokens in (400, 800):  # first what was stopped, then what its length cut
        page.get_by_role("button", name="Continue").click()
        expect(note).to_contain_text(f"{tokens} tokens", timeout=PATIENCE)
        until_idle(page)
    assert messages(page)[1]["content"].startswith(stopped["content"])


def test_a_message_that_nobody_answered_stays_and_is_asked_again(mortal: Begin) -> None:
    page, _, target, again = mortal(0.0)
    target.stop()
    until_idle(page)
    page.click("#new")
    say(page, "import os")
    expect(page.locator("#error")).to_contain_text("127.0.0.1", timeout=PATIENCE)
    say(page, "import sys")
    expect(page.locator("#error")).to_contain_text("127.0.0.1", timeout=PATIENCE)
    said, empty = messages(page)
    assert (said["content"], empty["content"]) == ("import os\n\nimport sys", "")
    expect(page.locator("#status")).to_contain_text("is away", timeout=PATIENCE)
    with BackgroundServer(again):
        note = page.locator(".message.assistant .note")
        expect(note).to_contain_text("24 tokens", timeout=PATIENCE)


def test_two_tabs_keep_what_each_of_them_made(page: Page, context: BrowserContext) -> None:
    other = context.new_page()
    other.goto(page.url)
    for number, tab in enumerate((page, other)):
        say(tab, f"x{number} = ")
    for tab in (page, other):
        expect(tab.locator("#list li")).to_have_count(2)
    assert len(kept(page)) == 2


def test_a_deleted_conversation_and_a_message_that_was_not_sent_come_back(page: Page) -> None:
    say(page, "import os")
    before = messages(page)
    page.click("#delete")
    expect(page.locator("#list")).not_to_contain_text("import os")
    page.click("#undo")
    expect(page.locator("#title")).to_have_text("import os")
    page.click("#delete")
    page.fill("#message", "half a thought")
    page.reload()
    expect(page.locator("#message")).to_have_value("half a thought")
    page.click("#bin summary")
    page.get_by_role("button", name="Restore import os").click()
    expect(page.locator("#title")).to_have_text("import os")
    assert before in [conversation["messages"] for conversation in kept(page)]
