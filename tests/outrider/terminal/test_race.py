"""Texts on a terminal: two side by side, whose conclusion is drawn only from what was measured; one
with messages before or below it, and never within it.
"""

from __future__ import annotations

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from inference.command import say
from inference.errors import InvalidRequest
from inference.proposer import MODEL
from outrider.client.watching import TextEvent
from outrider.terminal.demo import Texts, busy_reason, conclusion
from outrider.terminal.live_text import LiveText, in_colour
from outrider.terminal.race import (
    REAL_PAIR,
    Lane,
    Race,
    arrivals_of,
    can_race,
    read_recording,
    show_race,
)
from outrider.terminal.race import conclusion as recorded_conclusion
from outrider.text.completion import Completion
from outrider.text.pieces import Piece
from tests.support.commands import Run, Terminal, completion
from tests.support.refusals import assert_refused

ASKED = 0.037


def text(forwards: int = 100, seconds: float = 4.0, **more: Any) -> Completion:
    return completion(100, **{"forwards": forwards, "seconds": seconds} | more)


ALONE = text(model_seconds=100 * ASKED)
DRAFTED = text(40, 1.6, candidates=90, draft_calls=50, draft_seconds=1.0)


def lanes() -> list[Lane]:
    return [Lane("target-only", "def f"), Lane("Outrider", "def f")]


def piece(at: float, text: str, by: str = "target", tokens: int = 0) -> list[TextEvent]:
    """The events of a piece, and of its tokens."""
    return [
        ("piece", {"at": at, "text": text, "by": by}),
        ("tokens", {"at": at, "ids": [0] * tokens}),
    ]


def picture(of: list[Lane], max_lines: int = 10) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(Race(of, max_lines))
    return console.export_text()


def test_both_texts_stand_side_by_side_with_their_figures_and_latest_lines() -> None:
    left, right = both = lanes()
    for event in piece(0.5, "(x):", tokens=2):
        left.take(event)
    for event in piece(0.5, "(x):\n    return x", "model", tokens=6):
        right.take(event)
    lines = picture(both).splitlines()
    assert any(line.count("def f(x):") == 2 for line in lines)
    assert any("2 tokens, 0.5 s, 4.0" in line and "6 tokens, 0.5 s, 12.0" in line for line in lines)
    assert max(map(len, lines)) <= 80
    left.take(piece(1.0, "\x1b[2J" + "\n".join(f"line {number}" for number in range(50)))[0])
    assert "\x1b" not in left.text.plain
    shown = picture(both, max_lines=5)
    assert "line 49" in shown
    assert "line 44" not in shown


def test_a_text_that_has_ended_keeps_its_seconds_and_nothing_is_drawn_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    end: TextEvent = "end", {"seconds": 2.0, "tokens": 3}
    events = (*piece(1.0, "a", tokens=4), end, *piece(3.0, "", tokens=1))
    both = lanes()
    show_race(both, [(lane, event) for lane in (1, 0) for event in events])
    assert [lane.figures for lane in both] == ["done: 3 tokens, 2.0 s, 1.5 tokens/s"] * 2
    assert (can_race(), capsys.readouterr().out) == (False, "")


def test_a_conclusion_says_whether_the_texts_are_the_same_and_their_speed_up() -> None:
    for drafted, same in ((DRAFTED, "yes"), (text(40, 1.6, token_ids=[9] * 100), "no")):
        lines = conclusion(Texts(ALONE, drafted, busy=""))
        assert lines[0].startswith(f"same text: {same}")
        assert lines[1] == "1.6 s instead of 4.0 s: speed-up 2.5"


@pytest.mark.parametrize(
    ("load", "alone", "worked", "reason"),
    [
        (0.0, ALONE, 1.5, ""),
        ((os.cpu_count() or 1) + 1.0, ALONE, 1.5, "load average"),
        (0.0, text(model_seconds=2 * 100 * ASKED), 1.5, "74 ms instead of 37 ms"),
        (0.0, ALONE, 0.5, "50% of a processor"),
    ],
)
def test_a_busy_machine_gives_its_reason_in_place_of_a_speed_up(
    load: float, alone: Completion, worked: float, reason: str
) -> None:
    busy = busy_reason(load, alone, DRAFTED, ASKED, worked)
    assert reason in busy
    speed = conclusion(Texts(alone, DRAFTED, busy))[1]
    assert ("speed-up 2.5" in speed) is (reason == "")
    assert busy in speed


def test_the_recording_that_ships_here_is_of_two_equal_texts_and_names_machine_and_date(
    run: Run,
) -> None:
    recording = read_recording(REAL_PAIR)
    lines = recorded_conclusion(recording)
    assert lines[0].startswith("same text: yes")
    assert recording["date"] in lines[2]
    assert recording["machine"] in lines[2]
    both = lanes()
    for _, (lane, event) in arrivals_of(recording):
        both[lane].take(event)
    assert both[0].text.plain == both[1].text.plain
    assert both[0].tokens == both[1].tokens > 0
    assert all(lane.ended for lane in both)
    shown = run("demo", "--real")
    assert (shown.code, shown.out) == (0, "")
    told = [line.partition(":")[0] for line in shown.err.splitlines()]
    assert told[:3] == ["target-only", "Outrider", "same text"]


def test_a_file_that_is_no_comparison_is_refused(tmp_path: Path) -> None:
    recording = read_recording(REAL_PAIR)
    half = json.dumps({**recording, "tracks": recording["tracks"][:1]})
    file = tmp_path / "file.json"
    for content in ("no", "{}", '{"format": "outrider-recording", "version": 2}', half):
        file.write_text(content)
        words = ["not a comparison", "Compare without draft"] if content is half else ["recording"]
        assert_refused(lambda: read_recording(file), [str(file), *words], InvalidRequest)


# --- one text, with messages around it


def test_a_message_stands_below_a_status_and_behind_a_text(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with terminal, LiveText(coloured=False) as show:
        assert terminal.shown[0] == "waiting for the first token"
        say("loaded")
        assert terminal.shown[:2] == ["loaded", "waiting for the first token"]
        show(Piece("some\nte", MODEL))
        say("it went away")
        show(Piece("xt"))
        assert terminal.everything == "loaded\nsome\ntext"
    assert terminal.everything == "loaded\nsome\ntext\nit went away"
    monkeypatch.setenv("TERM", "dumb")  # it cannot move its cursor
    with Terminal() as dumb, LiveText(coloured=False) as show:
        show(Piece("a te", MODEL))
        say("it went away")
        show(Piece("xt", MODEL))
    assert dumb.everything == "a text\nit went away"


def test_what_is_no_terminal_is_told_at_once_unless_both_streams_are_one_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with LiveText(coloured=False) as show:
        show(Piece("te", MODEL))
        say("it went away")
        assert capsys.readouterr() == ("te", "it went away\n")
        show(Piece("xt", MODEL))
    assert capsys.readouterr() == ("xt\n", "")
    file = tmp_path / "both"
    with (
        file.open("w") as both,
        redirect_stdout(both),
        redirect_stderr(both),
        LiveText(coloured=False) as show,
    ):
        show(Piece("te", MODEL))
        say("a token takes 116 ms")
        show(Piece("xt", MODEL))
    assert file.read_text() == "text\na token takes 116 ms\n"


def test_colours_are_for_terminals_that_know_them_and_control_characters_for_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for no_color, kind, coloured in (
        ("", "xterm", True),
        ("", "dumb", False),
        ("1", "xterm", False),
    ):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", kind)
        with Terminal():
            assert in_colour() == coloured, (no_color, kind)
        assert not in_colour()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for coloured in (False, True):
        LiveText(coloured)(Piece("a\x1b[2J", MODEL))
        shown = capsys.readouterr().out
        assert "\x1b[2J" not in shown
        assert coloured or shown == "a [2J"
