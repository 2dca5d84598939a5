"""The chat page in a browser: conversations, drawn texts, servers, sizes and themes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.chat_page import IN_A_BROWSER, PATIENCE, ask_for, kept, put, say, until_idle

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
    browser: Browser, priced: str, size: str, theme: Any
) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.goto(priced)
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)
    say(page, "def main():")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    expect(page.locator("#message")).to_be_in_viewport()
    expect(page.locator("#send")).to_be_in_viewport()
    page.close()


def test_other_answers_and_edits_are_branches_and_no_text_goes(page: Page) -> None:
    ask_for(page, temperature=0.9)
    say(page, "def main():")
    first = page.locator(".message.assistant .text").inner_text()
    page.click("[aria-label=Regenerate]")
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    until_idle(page)
    assert page.locator(".message.assistant .text").inner_text() != first
    page.click("[aria-label='Earlier branch']")
    assert page.locator(".message.assistant .text").inner_text() == first
    page.click("[aria-label=Edit]")
    page.fill("[aria-label='Your message']", "import os")
    page.get_by_role("button", name="Send again").click()
    until_idle(page)
    expect(page.locator(".message.user .text")).to_have_text("import os")
    page.reload()
    page.click(".message.user [aria-label='Earlier branch']")
    expect(page.locator(".message.user .text")).to_have_text("def main():")
    assert page.locator(".message.assistant .text").inner_text() == first


def test_settings_are_the_conversations_own(page: Page) -> None:
    ask_for(page, temperature=0.7, seed=11, system="import os", stop_strings="()")
    with page.expect_request("**/page/texts") as asked:
        say(page, "x = ")
    sent: Any = asked.value.post_data_json
    assert sent["messages"][0] == {"role": "system", "content": "import os"}
    assert (sent["temperature"], sent["seed"], sent["stop"]) == (0.7, 11, ["()"])
    page.click("#new")
    expect(page.locator("#open-settings")).not_to_contain_text("system prompt")
    page.get_by_role("button", name="x =", exact=True).click()
    expect(page.locator("#open-settings")).to_contain_text("seed 11 · system prompt")


def test_conversations_are_found_renamed_exported_and_imported(page: Page, tmp_path: Path) -> None:
    put(page, {"role": "user", "content": "one"}, {"role": "assistant", "content": "a zebra"})
    page.click("#new")
    page.fill("#search", "ZEBRA")
    expect(page.locator("#found")).to_have_text("1 found")
    page.locator("#list button").click()
    page.click("#rename")
    page.keyboard.type("Animals")
    page.keyboard.press("Enter")
    expect(page.locator("#list")).to_contain_text("Animals")
    assert kept(page)[0]["title"] == "Animals"
    with page.expect_download() as downloaded:
        page.click("#export")
    file = tmp_path / "conversation.json"
    downloaded.value.save_as(file)
    page.fill("#search", "")
    page.set_input_files("#import-file", file)
    expect(page.locator("#list li")).to_have_count(2)
    file.write_text("{}")
    page.set_input_files("#import-file", file)
    expect(page.locator("#error")).to_contain_text("outrider-conversation-1")


def test_a_chat_needs_no_mouse(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the message"
    page.keyboard.press("Enter")
    page.keyboard.type("import os")
    page.keyboard.press("Enter")
    until_idle(page)
    page.keyboard.press("ArrowUp")
    page.keyboard.type("x")
    page.keyboard.press("Control+Enter")
    until_idle(page)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.id"))
    wanted = {"new", "search", "import", "rename", "export", "delete", "Messages", "Copy text"}
    wanted |= {"Edit", "Regenerate", "Earlier branch", "message", "beside", "send", "toggle-live"}
    assert wanted <= reached


MARKED_UP = r"""
# Heading
| a | b |
|---|--:|
| 1 | 2 |

It costs $5 or $6, and $e^{i\pi}$ is -1:

\[ \int_0^1 x\,dx \]

```python
def main(): # a comment
    pass
```
<think>I count.</think>
<tool_call>
{"name": "weather", "arguments": {"city": "Ulm"}}
</tool_call>
"""
CODE = "\n    # not a heading\n    return 1\n\ndef other():\n    pass\n"


def test_tables_formulas_code_thoughts_and_calls_are_drawn(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    put(page, {"role": "user", "content": "?"}, {"role": "assistant", "content": MARKED_UP})
    text = page.locator(".message.assistant .text")
    assert text.locator("td").all_inner_texts() == ["1", "2"]
    assert text.locator("math").count() == 2
    assert text.locator("math[display=block]").count() == 1
    assert "$5 or $6" in text.inner_text()
    assert text.locator(".hljs-keyword").first.inner_text() == "def"
    assert text.locator("summary").all_inner_texts() == ["Thoughts", "Calls weather"]
    assert '"city": "Ulm"' in text.locator("details").nth(1).inner_text()
    text.get_by_role("button", name="Copy code").first.click()
    expect(text.get_by_role("button", name="Copied")).to_be_visible()
    read = "navigator.clipboard.readText()"
    assert page.evaluate(read) == "def main(): # a comment\n    pass"
    page.locator(".message.assistant .bar-of-message [aria-label='Copy text']").click()
    expect(page.locator(".message.assistant .bar-of-message [aria-label=Copied]")).to_be_visible()
    assert page.evaluate(read) == MARKED_UP
    put(page, {"role": "user", "content": "def one():"}, {"role": "assistant", "content": CODE})
    assert page.locator(".message.assistant h4").count() == 0
    assert "# not a heading" in page.locator(".message.assistant pre").inner_text()
    for plain in (">" * 2000, "$" + "{" * 3000):  # too deep to be drawn
        put(page, {"role": "user", "content": "?"}, {"role": "assistant", "content": plain})
        expect(text).to_have_text(plain)
    expect(page.locator("#status")).to_contain_text("drafted by", timeout=PATIENCE)


HOSTILE = r"""
<img src=x onerror="document.title='bad'"> <script>document.title='bad'</script>
<style>body { display: none }</style> <svg onload="document.title='bad'"></svg>
<math><mtext><table><mglyph><style><!--</style><img src=x onerror="document.title='bad'">

[click](javascript:document.title='bad') ![image](http://elsewhere.example/a.png)
[data](data:text/html,<script>alert(1)</script>)
[here](/page/stop) [there](//evil.example/x) $\href{javascript:alert(1)}{x}$
$\htmlStyle{position:fixed}{x} \includegraphics{http://elsewhere.example/b.png}$

```"><img src=x onerror=alert(1)>
</code></pre><script>document.title='bad'</script>
```
<tool_call>{"name": "<img src=x onerror=alert(1)>", "arguments": {"a": "<script>"}}</tool_call>
"""


def test_text_never_becomes_a_script_a_style_or_a_request(
    context: BrowserContext, page: Page, priced: str
) -> None:
    asked, dialogs, refused = list[str](), list[str](), list[str]()
    context.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.on("console", lambda line: refused.append(line.text))
    put(page, {"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE})
    text = page.locator(".message.assistant .text")
    expect(text.locator("summary")).to_have_text("Calls <img src=x onerror=alert(1)>")
    assert text.locator("img, script, style, svg:not(.icon), iframe, form, [style]").count() == 0
    handlers = "[...document.querySelectorAll('#log *')].flatMap((one) => one.getAttributeNames())"
    assert not [name for name in page.evaluate(handlers) if name.startswith("on")]
    links = text.locator("a[href]").evaluate_all("all => all.map((one) => one.href)")
    assert links == ["http://elsewhere.example/a.png"]  # which nobody follows
    assert "<script>document.title='bad'</script>" in text.inner_text()
    assert page.title() != "bad"
    assert dialogs == []
    assert not [line for line in refused if "Content Security Policy" in line]
    assert all(url.startswith((priced, "blob:")) for url in asked)


def test_an_attached_text_file_goes_with_the_message(page: Page) -> None:
    def attach(name: str, content: bytes) -> None:
        file: Any = {"name": name, "mimeType": "text/plain", "buffer": content}
        page.set_input_files("#attach-file", file)

    attach("raw.bin", b"\xff\x00")
    expect(page.locator("#error")).to_contain_text("raw.bin is not a text file")
    attach("big.txt", b"x" * (2**18 + 1))
    expect(page.locator("#error")).to_contain_text("up to 256")
    attach("notes.md", "```\nüber\n```\n".encode())
    expect(page.locator("#attached li")).to_have_count(1)
    with page.expect_request("**/page/texts") as asked:
        say(page, "What is this?")
    sent: Any = asked.value.post_data_json
    (message,) = sent["messages"]
    assert message["content"] == "notes.md:\n````\n```\nüber\n```\n````\n\nWhat is this?"
    expect(page.locator("#attached li")).to_have_count(0)
    page.reload()
    expect(page.locator(".message.user summary")).to_contain_text("notes.md")
    expect(page.locator(".message.user .text")).to_contain_text("What is this?")


def test_the_end_of_a_text_stays_in_view_until_the_user_scrolls_away(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    say(page, "def main():", 200)
    note = page.locator(".message.assistant .note")
    expect(note).to_be_in_viewport(timeout=PATIENCE)
    page.set_viewport_size({"width": 390, "height": 500})
    expect(note).to_be_in_viewport(timeout=PATIENCE)
    page.evaluate("document.getElementById('messages').scrollTop = 0")
    expect(note).not_to_be_in_viewport()
    page.get_by_role("button", name="To the end").click()
    expect(note).to_be_in_viewport(timeout=PATIENCE)
