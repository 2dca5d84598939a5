"""The chat in the terminal: messages, commands, and conversations in files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from inference.errors import InvalidRequest
from outrider.cli import main
from outrider.terminal.chat import history_file
from outrider.text.conversation import Conversation


@pytest.fixture(scope="module")
def target() -> Iterator[outrider.RunningTarget]:
    with outrider.serve(port=0, batch=2) as running:
        yield running


def chat(
    target: outrider.RunningTarget, lines: str, monkeypatch: pytest.MonkeyPatch, *more: str
) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    flags = ["--target_host", target.address, "--max_new_tokens", "12", *more]
    return main(["chat", *flags])


def test_each_line_is_a_turn_and_later_turns_know_the_earlier(
    target: outrider.RunningTarget,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    file = tmp_path / "conversation.json"
    lines = f"def main():\nclass Queue:\n/save {file}\n"
    assert chat(target, lines, monkeypatch) == 0
    messages = json.loads(file.read_text())["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    with outrider.connect(target.address, draft=False) as engine:
        assert engine.chat(messages[:3], max_tokens=12).text == messages[3]["content"]
    assert messages[1]["content"] in capsys.readouterr().out


def test_a_saved_conversation_goes_on(
    target: outrider.RunningTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    chat(target, f"/system be brief\ndef main():\n/save {first}\n", monkeypatch)
    chat(target, f"class Queue:\n/save {second}\n", monkeypatch, "--load", str(first))
    before, after = (Conversation.read(path).messages for path in (first, second))
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2
    assert before[0] == {"role": "system", "content": "be brief"}


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
def test_commands_answer_in_words_and_the_chat_goes_on(
    target: outrider.RunningTarget,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    said: str,
) -> None:
    assert chat(target, f"{line}\ndef main():\n/exit\nnever\n", monkeypatch) == 0
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out.strip()


def test_reset_keeps_the_system_message() -> None:
    conversation = Conversation()
    conversation.say("system", "a")
    conversation.say("user", "b")
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "a"}]
    conversation.say("system", "")
    assert conversation.messages == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": "other", "messages": []}',
        '{"messages": []}',
        '{"format": "outrider-conversation-1", "messages": [{"role": "x", "content": ""}]}',
    ],
)
def test_a_file_that_is_no_conversation_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"x\.json"):
        Conversation.read(path)


def test_what_was_typed_is_for_this_user_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert history_file().stat().st_mode & 0o777 == 0o600
    history_file().chmod(0o644)
    assert history_file().stat().st_mode & 0o777 == 0o600


def test_a_system_message_takes_the_place_of_an_empty_one() -> None:
    conversation = Conversation([{"role": "system", "content": ""}])
    conversation.say("system", "be brief")
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
