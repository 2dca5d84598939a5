"""A target that ends while clients are there writes no exception to stderr."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

import pytest

from tests.support.hostile import deaf, left_open
from tests.support.wire_fixtures import WAIT, opening, process

SETTLE = 0.2


@pytest.mark.parametrize("asks", [False, True])
def test_clients_that_go_while_they_are_told_to_leave_no_exception_on_stderr(
    asks: bool,
) -> None:
    with process() as (target, address), ExitStack() as clients:
        peers = [clients.enter_context(deaf(address, asks=asks)) for _ in range(2)]
        time.sleep(SETTLE)
        target.send_signal(signal.SIGTERM)
        time.sleep(SETTLE)
        for peer in peers:
            peer.close()
        _, said = target.communicate(timeout=WAIT)
    assert (target.returncode, said) == (0, "")


def test_clients_that_leave_when_told_to_leave_no_exception_on_stderr() -> None:
    with process() as (target, address):
        with left_open(address, opening()), left_open(address, opening()):
            target.send_signal(signal.SIGTERM)
            time.sleep(SETTLE)
        _, said = target.communicate(timeout=WAIT)
    assert (target.returncode, said) == (0, "")
