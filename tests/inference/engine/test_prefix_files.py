"""Prefixes in files: another start begins where this one ended, and believes nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pytest

from inference.backends import RowStates
from inference.engine.engine import Engine
from inference.engine.prefix_files import LEAST, PART, KeptPrefix, PrefixFiles
from inference.engine.session import Session
from inference.order import Opened
from inference.sampling import SamplingParams
from inference.tree import IntArray
from tests.support.exact import (
    GREEDY,
    Exact,
    Recorder,
    asked,
    exact_engine,
    opened,
    own_text,
    prompt_of,
    recorded,
    run_dry,
    running,
    text_of,
)

ROOM = 1 << 20
"""Bytes: more than any test here needs."""

LONG = 3 * PART + 40


class Start:
    """One start of a target whose prefixes are kept in a folder.

    said: what it tells of its files
    """

    def __init__(
        self, folder: Path, *, most: int = ROOM, model: str = "one", rows: int = 2
    ) -> None:
        self.said: list[str] = []

        def files(states: RowStates) -> PrefixFiles:
            return PrefixFiles(folder, most, [model], states, self.said.append)

        self.engine: Engine
        self.model: Exact
        self.engine, self.model, _ = exact_engine(rows, files=files)
        self.seen: Recorder = recorded(self.engine)

    @property
    def prefilled(self) -> int:
        """Tokens that were computed as prompts."""
        return sum(done.nodes for done in self.seen.forwards if done.prefill)

    def keep(self, prompt: Sequence[int], tenant: str = "") -> None:
        """Prefill a prompt, leave it, and let the target be idle."""
        self.engine.close(opened(self.engine, prompt, tenant=tenant))
        self.idle()

    def idle(self) -> None:
        while self.engine.use_idle_time():
            pass

    def text(self, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Session:
        """Make a text, and see that it is the target's own."""
        session = asked(self.engine, prompt, 15, params)
        run_dry(self.engine)
        assert text_of(session) == own_text(prompt, 15, params)
        return session


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(0.7, seed=5)], ids=str)
def test_another_start_prefills_what_no_file_has(tmp_path: Path, params: SamplingParams) -> None:
    prompt = prompt_of(1, LONG)
    Start(tmp_path).keep(prompt)
    again = Start(tmp_path)
    again.text([*prompt, 5, 6], params)
    assert again.seen.reused == [LONG - 1]
    assert again.prefilled == 2
    assert again.said == []


@pytest.mark.parametrize("shared", [LEAST, PART - 1, PART, PART + 1, LONG - 1])
def test_a_prefix_is_used_as_far_as_a_prompt_has_it(tmp_path: Path, shared: int) -> None:
    prompt = prompt_of(2, LONG)
    Start(tmp_path).keep(prompt)
    again = Start(tmp_path)
    again.text([*prompt[:shared], *prompt_of(3, 100)])
    assert again.seen.reused == [shared]


def test_a_file_goes_on_where_a_row_ends(tmp_path: Path) -> None:
    prompt = prompt_of(4, LONG)
    Start(tmp_path).keep(prompt)
    again = Start(tmp_path, rows=1)
    again.engine.close(opened(again.engine, [*prompt[:300], 7, 7]))
    again.text([*prompt, 9])
    assert again.seen.reused == [300, LONG - 1]


def test_a_text_that_goes_on_takes_the_place_of_its_beginning(tmp_path: Path) -> None:
    start, prompt = Start(tmp_path), prompt_of(5, LONG)
    start.keep(prompt[:400])
    start.keep(prompt)
    start.keep(prompt[:500])
    (path,) = files_in(tmp_path)
    again = Start(tmp_path)
    again.text(prompt)
    assert again.seen.reused == [LONG - 1]
    assert path.stat().st_size > 16 * (LONG - 1)


def test_a_target_that_is_stopped_keeps_what_its_sessions_had(tmp_path: Path) -> None:
    start, prompt = Start(tmp_path), prompt_of(6, LONG)
    with running(start.engine):
        opened(start.engine, prompt)
    again = Start(tmp_path)
    opened(again.engine, prompt)
    assert again.seen.reused == [LONG - 1]


def test_other_sessions_are_opened_while_a_prefix_is_sought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, find = prompt_of(6, LONG), PrefixFiles.find
    Start(tmp_path).keep(prompt)
    again, others = Start(tmp_path), list[Thread]()

    def slowly(files: PrefixFiles, tokens: IntArray, sharing: str, known: int) -> KeptPrefix | None:
        others.append(Thread(target=again.engine.open, args=([7], GREEDY), daemon=True))
        others[-1].start()
        others[-1].join(30.0)
        assert not others[-1].is_alive()
        return find(files, tokens, sharing, known)

    monkeypatch.setattr(PrefixFiles, "find", slowly)
    session, _ = again.engine.open(prompt, GREEDY)
    again.engine.step()
    assert session.live.cached > 0
    assert len(others) == 1


def test_neither_another_target_nor_another_tenant_reads_it(tmp_path: Path) -> None:
    prompt = prompt_of(7, LONG)
    Start(tmp_path).keep(prompt, tenant="a")
    for start, tenant in ((Start(tmp_path, model="two"), "a"), (Start(tmp_path), "b")):
        opened(start.engine, prompt, tenant=tenant)
        assert start.seen.reused == [0]
        assert start.said == []
    mine = Start(tmp_path)
    opened(mine.engine, prompt, tenant="a")
    assert mine.seen.reused == [LONG - 1]


def tokens_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8 + 4 * 100] ^= 1
    path.write_bytes(content)


def key_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def anothers(path: Path) -> None:
    """Let the file be that of another prefix of the same target."""
    folder = path.parent / "other"
    folder.mkdir()
    Start(folder).keep(prompt_of(9, LONG))
    (other,) = files_in(folder)
    path.write_bytes(other.read_bytes())


def parts_exchanged(path: Path) -> None:
    content = path.read_bytes()
    size = 32 + 16 * PART
    head = 8 + 4 * (LONG - 1)
    first, second = content[head : head + size], content[head + size : head + 2 * size]
    path.write_bytes(content[:head] + second + first + content[head + 2 * size :])


SPOILT: list[tuple[Callable[[Path], None], int]] = [
    (tokens_changed, 0),
    (cut, 0),
    (emptied, 0),
    (anothers, 0),
    (parts_exchanged, 0),
    (key_changed, 3 * PART),
]


@pytest.mark.parametrize(
    ("spoil", "believed"), SPOILT, ids=lambda one: getattr(one, "__name__", "")
)
def test_a_spoilt_file_is_told_of_once_and_removed(
    tmp_path: Path, spoil: Callable[[Path], None], believed: int
) -> None:
    prompt = prompt_of(8, LONG)
    Start(tmp_path).keep(prompt)
    (path,) = files_in(tmp_path)
    spoil(path)
    again = Start(tmp_path)
    again.text([*prompt, 3])
    assert again.seen.reused == [believed]
    (line,) = again.said
    assert str(path) in line
    assert not path.exists()


def reading(folder: Path, prompt: list[int]) -> tuple[Start, Session, Future[Opened]]:
    """A second start, with a session that has read the first part of its kept prefix."""
    Start(folder).keep(prompt)
    again = Start(folder)
    session, future = again.engine.open(prompt, GREEDY)
    again.engine.step()
    return again, session, future


def test_a_file_that_goes_between_two_parts_costs_time_alone(tmp_path: Path) -> None:
    prompt = prompt_of(10, LONG)
    again, _, future = reading(tmp_path, prompt)
    files_in(tmp_path)[0].unlink()
    again.engine.finish(future)
    assert again.seen.reused == [PART]
    again.text([*prompt, 4])


def test_a_session_that_is_closed_while_its_prefix_is_read_holds_nothing(tmp_path: Path) -> None:
    prompt = prompt_of(11, LONG)
    again, session, _ = reading(tmp_path, prompt)
    again.engine.close(session)
    run_dry(again.engine)
    assert again.engine.free_rows == 2
    again.text([*prompt, 4])


def test_a_prefix_that_is_taken_up_while_it_is_written_is_kept_later(tmp_path: Path) -> None:
    start, prompt = Start(tmp_path, rows=1), prompt_of(12, LONG)
    start.engine.close(opened(start.engine, prompt))
    assert start.engine.use_idle_time()
    session = opened(start.engine, [*prompt, 8])
    start.engine.close(session)
    start.idle()
    (path,) = files_in(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = Start(tmp_path)
    opened(again.engine, [*prompt, 8])
    assert again.seen.reused == [LONG]


def test_the_longest_unused_files_go_for_new_ones(tmp_path: Path) -> None:
    size = 20 * LONG + 200
    start = Start(tmp_path, most=2 * size)
    for number in (1, 2):
        start.keep(prompt_of(number, LONG))
    for number, path in enumerate(sorted(files_in(tmp_path), key=lambda one: one.stat().st_mtime)):
        os.utime(path, (number, number))
    again = Start(tmp_path, most=2 * size)
    again.text(prompt_of(1, LONG))  # it was written first, and is used last
    again.keep(prompt_of(3, LONG))
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 2 * size
    last = Start(tmp_path, rows=3)
    for number in (1, 2, 3):
        opened(last.engine, prompt_of(number, LONG))
    assert last.seen.reused == [LONG - 1, 0, LONG - 1]


def test_short_prefixes_and_those_without_room_are_not_kept(tmp_path: Path) -> None:
    start = Start(tmp_path, most=20 * LONG - 1000)
    start.keep(prompt_of(1, LONG))
    start.keep(prompt_of(2, LEAST))
    assert files_in(tmp_path) == []
    assert start.said == []


def test_a_folder_that_cannot_be_written_to_is_told_of_once(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    start = Start(folder)
    start.keep(prompt_of(1, LONG))
    start.keep(prompt_of(2, LONG))
    assert len(start.said) == 1
    start.text(prompt_of(1, LONG))
