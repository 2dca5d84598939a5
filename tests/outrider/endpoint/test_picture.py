"""The picture of a text in a browser: its tree, its forwards, the knob, and recordings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from outrider.endpoint.target_manager import TargetManager
from outrider.options.draft_flags import DEFAULT_SOURCES
from outrider.options.roles import ServeRole
from outrider.terminal.race import REAL_PAIR
from tests.outrider.endpoint.conftest import http_server, opened
from tests.support.chat_page import IN_A_BROWSER, PATIENCE, ask_for
from tests.support.wire_fixtures import free_port

pytestmark = [pytest.mark.extended, IN_A_BROWSER]


@pytest.fixture(scope="module")
def made(browser: Browser, target: str) -> Iterator[Page]:
    """A page with a finished text, at prices of which drafting is a small part."""
    prices = {"usd_per_hour": 1.34, "usd_per_kwh": 0.3, "usd_per_gb": 0.09, "draft_watts": 30.0}
    options: dict[str, Any] = {"draft": DEFAULT_SOURCES} | prices
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    with opened(target, **options) as (_, texts, address):
        texts.client.wait()
        page.goto(address)
        ask_for(page, max_tokens=60, temperature=0)
        page.fill("#message", "def main():")
        page.check("#beside")
        page.press("#message", "Enter")
        expect(page.locator("#replay-own")).to_be_enabled(timeout=PATIENCE)
        expect(page.locator("#send")).to_be_enabled(timeout=PATIENCE)
        yield page
    context.close()


@pytest.fixture(scope="module")
def nowhere(made: Page) -> Iterator[Page]:
    """A page whose server has no target."""
    manager = TargetManager(ServeRole(target_host=f"127.0.0.1:{free_port()}"))
    page = made.context.new_page()
    with closing(manager), http_server(manager) as address:
        page.goto(address)
        yield page


def same_texts(page: Page, texts: str) -> None:
    """There are two of these texts, and they are the same."""
    drafted, alone = page.locator(texts).all_inner_texts()
    assert drafted == alone != ""


def test_the_panel_shows_the_latest_forward_pass_that_had_candidates(made: Page) -> None:
    same_texts(made, ".pair .text")
    expect(made.locator("#newest")).to_have_attribute("aria-pressed", "true")
    expect(made.locator("#picture-words")).to_contain_text("Forward")
    expect(made.locator("#picture-words")).not_to_contain_text(re.compile(r"\b0 candidates"))
    heights = "all => all.map(one => one.getBoundingClientRect().height)"
    letters = made.locator("#tree text").evaluate_all(heights)
    assert min(letters) >= 12
    assert made.locator("#tree .node.taken").count() > 0
    expect(made.locator("#timeline")).to_have_attribute("aria-label", re.compile("ms per forward"))


def test_a_candidate_finds_its_place_although_the_target_was_quicker(made: Page) -> None:
    """The draft sent number 1 below number 0, which the target had committed meanwhile."""
    found = made.evaluate(
        """async () => {
            const { Forwards } = await import("./forwards.js");
            const forwards = new Forwards(), rest = { known: 9, model_seconds: 0.1, bytes: [1, 1] };
            const tokens = (at, position, id, by) => forwards.event("tokens",
                { at, position, ids: [id, 99], texts: ["t", "."], by: [by, "target"], ...rest });
            const nodes = (at, base, ...nodes) =>
                forwards.event("nodes", { at, by: "model", base, nodes, more: 0 });
            nodes(0.1, 4, [0, -1, "a", 0.5, 10], [1, 0, ".", 0.5, 99]);
            tokens(0.2, 5, 10, "model");
            nodes(0.3, 5, [2, 1, "c", 0.25, 12], [3, 0, "stale", 0.5, 13], [4, -1, "d", 0.1, 14]);
            tokens(0.4, 7, 12, "model");
            return forwards.all.map(({ made, nodes }) => [made[0].chance, nodes.length]);
        }"""
    )
    assert found == [[0.5, 2], [0.25, 1]]


def test_forwards_tokens_and_the_large_tree_are_reached_by_the_keyboard(made: Page) -> None:
    last = made.locator("#step").get_attribute("max")
    made.focus("#step")
    made.keyboard.press("Home")
    expect(made.locator("#picture-words")).to_contain_text("Forward pass 1 of")
    made.keyboard.press("End")
    assert made.locator("#step").input_value() == last
    made.locator("#tree .node").first.focus()
    expect(made.locator("#who")).to_contain_text("accepted")
    made.keyboard.press("PageUp")
    assert made.locator("#step").input_value() == str(int(last or 0) - 1)
    made.click("#newest")
    made.locator("#tree .node").first.focus()
    made.keyboard.press("Enter")
    expect(made.locator("#stage #tree .node").first).to_be_visible()
    made.keyboard.press("Escape")
    expect(made.locator("#live #tree .node").first).to_be_visible()


def test_the_knob_steers_and_is_hidden_where_it_would_save_nothing(
    page: Page, made: Page, target: str
) -> None:
    with page.expect_response("**/page/steer") as steered:
        page.locator("#cs").fill("50")
    assert steered.value.json()["weight"] == 0.5
    expect(page.locator("#cs-value")).to_have_text("50")
    page.locator("#cs").fill("0")
    expect(made.locator("#cs-note")).to_contain_text("too little to trade")
    expect(made.locator("#knob")).to_be_hidden()
    with opened(target, draft=DEFAULT_SOURCES, usd_per_hour=1.34) as (*_, address):
        page.goto(address)
        note = page.locator("#cs-note")
        expect(note).to_contain_text("api_cost is proportional to time", timeout=PATIENCE)
        for hidden in ("#cs", "#curve"):
            expect(page.locator(hidden)).to_be_hidden()


def test_recordings_of_the_page_and_of_this_repository_replay_without_a_target(
    made: Page, nowhere: Page, tmp_path: Path
) -> None:
    with made.expect_download() as downloaded:
        made.click("#save-recording")
    own = tmp_path / "recording.json"
    downloaded.value.save_as(own)
    assert "127.0.0.1" not in own.read_text(encoding="utf-8")
    for file in (own, REAL_PAIR):
        nowhere.set_input_files("#recording", file)
        nowhere.locator("#clock").fill("1000")
        same_texts(nowhere, ".replay-text")
        expect(nowhere.locator("#stage #tree .node").first).to_be_visible()
        nowhere.locator("#clock").fill("0")
        assert nowhere.locator(".replay-text").first.inner_text() == ""
        nowhere.click("#close-stage")


def test_a_bad_recording_is_refused_with_what_was_got_and_what_is_needed(nowhere: Page) -> None:
    head = '{"format": "outrider-recording", "version": '
    track = '{"name": "a", "events": [["piece", {"at": 0, "text": 7}]]}]}'
    for content, got in (
        ("no", "it is not JSON"),
        ("{}", "its format is null"),
        (head + "2}", "its version is 2"),
        (head + '1, "prompt": "", "tracks": [' + track, "event 1 of track 1"),
    ):
        file: Any = {"name": "x.json", "mimeType": "text/json", "buffer": content.encode()}
        nowhere.set_input_files("#recording", file)
        for words in (got, "Save recording"):
            expect(nowhere.locator("#error")).to_contain_text(words)
