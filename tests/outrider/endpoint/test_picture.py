"""The picture of a text in a real browser: its tree, its forwards, its timeline, and recordings."""

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

PROMPT = "def main():"

pytestmark = [pytest.mark.extended, IN_A_BROWSER]


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def made(blank: Page, target: str) -> Iterator[Page]:
    """A page with a finished text, at prices of which drafting is a small part."""
    prices = {"usd_per_hour": 1.34, "usd_per_kwh": 0.3, "usd_per_gb": 0.09, "draft_watts": 30.0}
    options: dict[str, Any] = {"draft": DEFAULT_SOURCES} | prices
    with opened(target, **options) as (_, texts, address):
        texts.client.wait()
        blank.goto(address)
        ask_for(blank, max_tokens=60, temperature=0)
        blank.fill("#message", PROMPT)
        blank.check("#beside")
        blank.press("#message", "Enter")
        expect(blank.locator("#replay-own")).to_be_enabled(timeout=PATIENCE)
        expect(blank.locator("#send")).to_be_enabled(timeout=PATIENCE)
        yield blank


@pytest.fixture(scope="module")
def nowhere(made: Page) -> Iterator[Page]:
    """A page whose server has no target."""
    manager = TargetManager(ServeRole(target_host=f"127.0.0.1:{free_port()}"))
    page = made.context.new_page()
    with closing(manager), http_server(manager) as address:
        page.goto(address)
        yield page


def test_the_panel_shows_the_latest_forward_pass_that_had_candidates(made: Page) -> None:
    expect(made.locator("#newest")).to_have_attribute("aria-pressed", "true")
    expect(made.locator("#picture-words")).not_to_contain_text(re.compile(r"\b0 candidates"))
    tree, drawn = (made.locator(one).bounding_box() for one in ("#tree", "#tree svg"))
    assert tree is not None
    assert drawn is not None
    assert tree["height"] - drawn["height"] < 20


def test_the_last_tree_stays_and_its_letters_have_a_readable_size(made: Page) -> None:
    expect(made.locator("#picture-words")).to_contain_text("Forward")
    sizes = made.locator("#tree text").evaluate_all(
        """all => all.map(one => one.getBoundingClientRect().height)"""
    )
    assert len(sizes) > 0
    assert all(size >= 12 for size in sizes)
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


def test_forwards_and_tokens_are_reached_by_the_keyboard(made: Page) -> None:
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


def test_the_tree_is_enlarged_by_enter_and_escape_brings_it_back(made: Page) -> None:
    made.locator("#tree .node").first.focus()
    made.keyboard.press("Enter")
    expect(made.locator("#stage #tree .node").first).to_be_visible()
    made.keyboard.press("Escape")
    expect(made.locator("#live #tree .node").first).to_be_visible()


def test_no_knob_is_shown_where_it_would_save_nothing(made: Page) -> None:
    expect(made.locator("#cs-note")).to_contain_text("too little to trade")
    expect(made.locator("#knob")).to_be_hidden()


def test_a_recording_of_the_page_replays_without_a_target(
    made: Page, nowhere: Page, tmp_path: Path
) -> None:
    with made.expect_download() as downloaded:
        made.click("#save-recording")
    file = tmp_path / "recording.json"
    downloaded.value.save_as(file)
    assert "127.0.0.1" not in file.read_text(encoding="utf-8")
    replayed(nowhere, file)


def test_the_recording_that_ships_here_replays_without_a_target(nowhere: Page) -> None:
    replayed(nowhere, REAL_PAIR)


def replayed(page: Page, file: Path) -> None:
    """Both texts of a recording are shown to their ends, and are the same."""
    page.set_input_files("#recording", file)
    page.locator("#clock").fill("1000")
    texts = page.locator(".replay-text").all_inner_texts()
    assert len(texts) == 2
    assert texts[0] == texts[1] != ""
    expect(page.locator("#stage #tree .node").first).to_be_visible()
    page.locator("#clock").fill("0")
    assert page.locator(".replay-text").first.inner_text() == ""
    page.click("#close-stage")


@pytest.mark.parametrize(
    ("content", "got"),
    [
        ("no", "it is not JSON"),
        ("{}", "its format is null"),
        ('{"format": "outrider-recording", "version": 2}', "its version is 2"),
        (
            '{"format": "outrider-recording", "version": 1, "prompt": "", '
            '"tracks": [{"name": "a", "events": [["piece", {"at": 0, "text": 7}]]}]}',
            "event 1 of track 1",
        ),
    ],
)
def test_a_bad_recording_is_refused_with_what_was_got_and_what_is_needed(
    nowhere: Page, content: str, got: str
) -> None:
    file = {"name": "x.json", "mimeType": "text/json", "buffer": content.encode()}
    nowhere.set_input_files("#recording", file)  # type: ignore[arg-type]
    expect(nowhere.locator("#error")).to_contain_text(got)
    expect(nowhere.locator("#error")).to_contain_text("Save recording")
