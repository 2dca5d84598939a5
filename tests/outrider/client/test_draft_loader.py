"""Loading a draft holds up neither the end of a text nor that of a program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event

import pytest

from inference.errors import InvalidRequest, Unavailable
from outrider.client.draft_loader import DraftLoader
from outrider.processes import BACKGROUND
from outrider.target.spawn import role_environment
from tests.support.wire_fixtures import WAIT


class Load:
    """Loads a draft as soon as the test allows it."""

    def __init__(self) -> None:
        self.allowed, self.left = Event(), Event()

    @contextmanager
    def __call__(self, rows: int) -> Iterator[str]:
        assert self.allowed.wait(WAIT)
        yield f"{rows} rows"
        self.left.set()


def test_the_first_call_says_how_many_rows_are_loaded() -> None:
    load = Load()
    loader = DraftLoader(load)
    load.allowed.set()
    loader.begin(3)
    loader.begin(5)
    assert loader.wait() == loader.loaded == "3 rows"
    assert loader.loading_seconds is None
    loader.close()
    assert load.left.is_set()


def test_nobody_waits_for_a_draft_that_no_text_wants_any_more() -> None:
    load = Load()
    loader = DraftLoader(load)
    assert loader.wait(lambda: False) is None
    assert loader.loading_seconds is not None
    load.allowed.set()


def test_a_draft_that_is_loaded_after_its_client_was_closed_is_let_go() -> None:
    load = Load()
    loader = DraftLoader(load)
    loader.begin()
    loader.close()
    assert not load.left.is_set()
    load.allowed.set()
    assert load.left.wait(WAIT)
    with pytest.raises(Unavailable, match="closed before"):
        loader.wait()


def test_an_error_of_loading_is_raised_to_everyone_who_asks() -> None:
    @contextmanager
    def fail(rows: int) -> Iterator[str]:
        raise InvalidRequest("no such draft")
        yield ""

    loader = DraftLoader(fail)
    loader.check()
    for ask in (loader.wait, loader.wait, loader.check):
        with pytest.raises(InvalidRequest):
            ask()
    assert loader.loaded is None
    loader.close()


def test_a_command_ends_with_its_own_code_while_a_draft_loads() -> None:
    code = (
        "import sys, threading, time\n"
        "from outrider.processes import leave\n"
        f"threading.Thread(target=time.sleep, args=(3600,), name={BACKGROUND!r}).start()\n"
        "print('text')\n"
        "sys.exit(leave(3))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=role_environment(),
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT,
    )
    assert (made.returncode, made.stdout) == (3, "text\n")
