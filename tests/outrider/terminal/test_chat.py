"""The chat in the terminal: messages, commands, and conversations in files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from outrider.terminal.chat import history_file
from outrider.text.conversation import Conversation
from tests.support.commands import Ended, Run
from tests.support.refusals import assert_refused

SHORT = ("--max_new_tokens", "12", "--temperature", "0")


@pytest.fixture(scope="module")
def target() -> Iterator[outrider.RunningTarget]:
    with outrider.serve(port=0, batch=2) as running:
        yield running


@pytest.fixture
def chat(target: outrider.RunningTarget, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `outrider chat` on these lines."""

    def say(lines: str) -> Ended:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return run("chat", "--target_host", target.address, *SHORT)

    return say


def test_later_turns_know_the_earlier_and_a_saved_conversation_goes_on(
    target: outrider.RunningTarget, chat: Run, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    said = chat(f"/system be brief\ndef main():\n/save {first}\n")
    before = Conversation.read(first).messages
    assert before[0] == {"role": "system", "content": "be brief"}
    assert (said.code, before[2]["content"] in said.out) == (0, True)
    chat(f"/load {first}\nclass Queue:\n/save {second}\n")
    *earlier, last = json.loads(second.read_text())["messages"]
    assert earlier == [*before, {"role": "user", "content": "class Queue:"}]
    with outrider.connect(target.address, draft=False) as engine:
        assert last["content"] == engine.chat(earlier, max_tokens=12, temperature=0).text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/sav x", "/save"),
        ("/save", "/save FILE"),
        ("/cs fast", "tps, balanced, cost"),
        ("/cs 50", "--usd_per_hour"),
        ("/stats", "no text"),
        ("/help", "/reset"),
    ],
)
def test_commands_answer_in_words_and_the_chat_goes_on(chat: Run, line: str, said: str) -> None:
    shown = chat(f"{line}\ndef main():\n/exit\nnever\n")
    assert shown.code == 0
    assert said in shown.err
    assert shown.out.strip()


def test_a_system_message_is_kept_until_it_is_emptied() -> None:
    conversation = Conversation([{"role": "system", "content": ""}])
    conversation.say("system", "a")
    conversation.say("user", "b")
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "a"}]
    conversation.say("system", "")
    assert conversation.messages == []


def test_a_file_that_is_no_conversation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in (
        "",
        "[]",
        '{"format": "other", "messages": []}',
        '{"format": "outrider-conversation-1", "messages": [{"role": "x", "content": ""}]}',
    ):
        path.write_text(text)
        assert_refused(lambda: Conversation.read(path), ["x.json"])


def test_what_was_typed_is_for_this_user_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert history_file().stat().st_mode & 0o777 == 0o600
    history_file().chmod(0o644)
    assert history_file().stat().st_mode & 0o777 == 0o600
