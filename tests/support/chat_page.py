"""The chat page in a real browser: Debian's Chromium, which nothing here downloads."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from playwright.sync_api import Page, expect

CHROMIUM = shutil.which("chromium")
PATIENCE = 120_000
"""Milliseconds that a step may take on a busy machine."""

IN_A_BROWSER = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium"
)


def ask_for(page: Page, **settings: object) -> None:
    """Change settings of the conversation that is open."""
    page.click("#open-settings")
    for name, value in settings.items():
        page.fill(f"#{name}", str(value))
    page.click("#close-settings")


def until_idle(page: Page) -> None:
    """Wait until no text is being made."""
    expect(page.locator("#messages")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)


def say(page: Page, text: str, tokens: int = 24) -> None:
    """Send a message, and wait until its answer is finished."""
    ask_for(page, max_tokens=tokens)
    page.fill("#message", text)
    page.press("#message", "Enter")
    until_idle(page)


def kept(page: Page) -> list[dict[str, Any]]:
    """The conversations that the browser keeps, the latest first."""
    found = page.evaluate(
        """() => Object.entries(localStorage)
            .filter(([key]) => key.startsWith("outrider.conversation.")).map(([, one]) => one)"""
    )
    return sorted(map(json.loads, found), key=lambda one: -one["changed"])


def put(page: Page, *messages: dict[str, Any], name: str = "put") -> None:
    """Put a conversation into the browser, and open the page with it."""
    one = {"id": name, "settings": {}, "changed": 2**50, "messages": messages}
    page.evaluate(
        "([key, one]) => localStorage.setItem(key, JSON.stringify(one))",
        [f"outrider.conversation.{name}", one],
    )
    page.reload()
    expect(page.locator(".message").first).to_be_visible()
