"""A target that ends while clients are there writes no exception to stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from grpc_comm.transport import Address
from tests.support.hostile import RawPeer, left_open
from tests.support.wire_fixtures import LOOPBACK, WAIT, decode_to, opening

SETTLE = 0.2


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], Address]]:
    command = [sys.executable, "-m", "tests.support.wire_fixtures"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as started:
        try:
            assert started.stdout is not None
            yield started, LOOPBACK._replace(port=int(started.stdout.readline()))
        finally:
            started.kill()


def deaf(address: Address) -> RawPeer:
    """A client whose session is open and which takes no answers."""
    peer = RawPeer(address)
    peer.greet(window=0)
    peer.call()
    peer.send(opening().SerializeToString())
    return peer


def deaf_asker(address: Address) -> RawPeer:
    """One that has asked for tokens, too."""
    peer = deaf(address)
    peer.send(decode_to(2_000).SerializeToString())
    return peer


@pytest.mark.parametrize("client", [deaf, deaf_asker])
def test_clients_that_go_while_they_are_told_to_leave_no_exception_on_stderr(
    client: Callable[[Address], RawPeer],
) -> None:
    with process() as (target, address), ExitStack() as clients:
        peers = [clients.enter_context(closing(client(address))) for _ in range(2)]
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
