"""The chat page in a browser: texts in colour, figures, servers, sizes and themes."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from outrider.options.draft_flags import DEFAULT_SOURCES
from tests.outrider.endpoint.conftest import opened
from tests.support.chat_page import IN_A_BROWSER, PATIENCE, say

pytestmark = [pytest.mark.extended, IN_A_BROWSER]

SIZES = {"4K": (3840, 2160), "desktop": (1280, 800), "tablet": (820, 1100), "phone": (390, 844)}


def test_a_chat_in_colour_drawn_and_counted(page: Page) -> None:
    for place in ("#text-figures", "#picture-place", "#text-sources"):
        expect(page.locator(place)).to_be_hidden()
    page.click("#toggle-colours")
    say(page, "def main():", 60)
    expect(page.locator(".message.assistant h3")).to_have_text("outrider-embedded-target")
    expect(page.locator(".message.assistant .by-target").first).to_be_visible()
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
    with opened(target, draft=DEFAULT_SOURCES, usd_per_hour=1.34) as (*_, address):
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


def test_a_conversation_that_was_exported_can_be_imported(page: Page, tmp_path: Path) -> None:
    say(page, "import sys")
    with page.expect_download() as downloaded:
        page.click("#export")
    file = tmp_path / "conversation.json"
    downloaded.value.save_as(file)
    page.set_input_files("#import-file", file)
    expect(page.locator("#list li")).to_have_count(2)
    page.set_input_files(
        "#import-file", {"name": "x.json", "mimeType": "text/json", "buffer": b"{}"}
    )
    expect(page.locator("#error")).to_contain_text("outrider-conversation-1")


def test_a_server_can_be_added_started_and_stopped(page: Page, target: str) -> None:
    page.click("#open-servers")
    page.click("#servers summary")
    page.fill("#server-name", "here")
    page.fill("#server-address", target)
    page.click("#server-form button[type=submit]")
    page.get_by_role("button", name="Start here").click()
    expect(page.locator("#status")).to_contain_text(target, timeout=PATIENCE)
    page.get_by_role("button", name="Stop the target in use").click()
    expect(page.locator("#status")).to_contain_text("no target", timeout=PATIENCE)
    page.get_by_role("button", name="Start here").click()
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)


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
