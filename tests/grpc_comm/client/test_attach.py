"""A second device at a session hears the text and appends candidates, and may do nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.client.wire_session import AttachedSession
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from grpc_comm.server.session_table import MOST_GUESTS
from grpc_comm.translate import PROTOCOL_VERSION
from inference.engine.engine import Engine
from inference.errors import Busy, Gone, OutriderError, Unavailable
from inference.order import Decode, Pace
from inference.proposer import DEVICE, Nodes
from tests.support.hand_streams import Raw, draining
from tests.support.hostile import keys_file, known_as, resume
from tests.support.wire_fixtures import (
    assert_serves,
    background,
    candidates,
    chain_of,
    decode_to,
    eventually,
    news,
    opened,
    opening,
    raw_stub,
    rest,
    successor_engine,
    until_it_fails,
)

CODES = grpc.StatusCode
PROMPT = [1, 2, 3]


class Pair:
    """An owner and a second device, each over a connection of its own."""

    def __init__(self, engine: Engine, owner: Connection, device: Connection) -> None:
        self.engine, self.device = engine, device
        self.owner = opened(owner)

    def attach(self, tokens: list[int] | None = None) -> AttachedSession:
        assert self.owner.ticket is not None
        session = self.device.attached(self.owner.ticket)
        session.open(tokens or PROMPT)
        return session

    def attached(self, tokens: list[int] | None = None) -> AttachedSession:
        """And the target has answered."""
        session = self.attach(tokens)
        eventually(lambda: session.traffic.messages_down > 0)
        return session


@pytest.fixture
def pair() -> Iterator[Pair]:
    engine = successor_engine()
    with (
        background(engine) as server,
        connect(str(server.address)) as owner,
        connect(str(server.address)) as device,
    ):
        yield Pair(engine, owner, device)


def appended(session: AttachedSession, base: int, tokens: list[int]) -> Nodes:
    return candidates(session, base, tokens)._replace(proposer=DEVICE)  # type: ignore[arg-type]


def test_a_second_device_hears_the_text_and_its_candidates_are_verified(pair: Pair) -> None:
    device = pair.attached()
    pair.owner.decode(Decode(9, pace=Pace.WAIT))
    device.propose(appended(device, 2, [4, 5, 6, 90]))
    eventually(lambda: pair.engine.sessions[0].candidates.live == 4)
    pair.owner.go(2)
    for session in (pair.owner, device):
        progress = news(session)
        assert (progress.tokens, progress.proposers) == ((4, 5, 6, 7), (DEVICE,) * 3 + (255,))
        assert progress.nodes == 5
    assert device.receive(0) is None
    device.close()
    pair.owner.decode(Decode(9))
    assert rest(pair.owner) == [8, 9]


def test_candidates_of_owner_and_device_are_one_tree(pair: Pair) -> None:
    device = pair.attached()
    pair.owner.decode(Decode(9, pace=Pace.WAIT))
    pair.owner.propose(candidates(pair.owner, 2, [4, 5]))
    device.propose(appended(device, 2, [4, 5, 6]))
    eventually(lambda: pair.engine.sessions[0].candidates.live == 3)
    pair.owner.go(2)
    assert news(pair.owner).tokens == (4, 5, 6, 7)
    device.close()


def test_a_device_may_come_late_and_leave_early_and_the_session_goes_on(pair: Pair) -> None:
    pair.owner.decode(Decode(20))
    assert rest(pair.owner) == list(range(4, 21))
    device = pair.attached([*PROMPT, 4, 5])
    assert news(device).tokens == tuple(range(6, 21))
    device.close()
    device.close()
    assert_serves(pair.owner, 20)
    assert len(pair.engine.sessions) == 1


FORBIDDEN = {
    "decode": decode_to(9),
    "acknowledge": pb.ClientMessage(ack=pb.Ack(length=3)),
    "go": pb.ClientMessage(go=pb.Go(base=2)),
    "open": pb.ClientMessage(open=pb.Open()),
    "an empty message": pb.ClientMessage(),
    "an unknown token": chain_of([10**6]),
}


def attach(owner: RemoteSession | pb.Opened, **changes: object) -> pb.ClientMessage:
    ticket = owner if isinstance(owner, pb.Opened) else owner.ticket
    assert ticket is not None
    fields = {
        "session_id": ticket.session_id,
        "append_key": ticket.append_key,
        "protocol_version": PROTOCOL_VERSION,
        "length": 3,
    }
    return pb.ClientMessage(attach=pb.Attach(**(fields | changes)))  # type: ignore[arg-type]


@pytest.fixture
def by_hand() -> Iterator[tuple[RemoteSession, object]]:
    """A session of ours, and a stub to attach to it with."""
    with (
        background(successor_engine()) as server,
        connect(str(server.address)) as connection,
        raw_stub(server.address) as stub,
    ):
        yield opened(connection), stub


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_device_that_asks_for_more_is_sent_away_and_the_session_goes_on(
    by_hand: tuple[RemoteSession, object], what: str
) -> None:
    owner, stub = by_hand
    device = Raw(stub, attach(owner), FORBIDDEN[what])
    assert device.answer().opened.resume_key == b""
    assert device.ending()[0] is CODES.INVALID_ARGUMENT
    assert_serves(owner)


def test_a_device_that_closes_or_breaks_off_ends_nothing(
    by_hand: tuple[RemoteSession, object],
) -> None:
    owner, stub = by_hand
    closing = Raw(stub, attach(owner), pb.ClientMessage(close=pb.Close()))
    assert closing.answer().HasField("opened")
    assert closing.ending()[0] is CODES.OK
    breaking = Raw(stub, attach(owner))
    breaking.answer()
    breaking.cut()
    assert_serves(owner)


WRONG: dict[str, tuple[dict[str, object], grpc.StatusCode]] = {
    "another key": ({"append_key": b"0" * 16}, CODES.NOT_FOUND),
    "no key": ({"append_key": b""}, CODES.NOT_FOUND),
    "another session": ({"session_id": "another-session"}, CODES.NOT_FOUND),
    "another protocol": ({"protocol_version": 1}, CODES.FAILED_PRECONDITION),
    "less than the prompt": ({"length": 2}, CODES.FAILED_PRECONDITION),
    "more than there is": ({"length": 4}, CODES.FAILED_PRECONDITION),
}


@pytest.mark.parametrize("what", WRONG)
def test_who_may_not_attach_is_refused_and_the_session_goes_on(
    by_hand: tuple[RemoteSession, object], what: str
) -> None:
    owner, stub = by_hand
    changes, code = WRONG[what]
    assert Raw(stub, attach(owner, **changes)).ending()[0] is code
    assert_serves(owner)


def test_the_keys_do_not_serve_for_each_other(by_hand: tuple[RemoteSession, object]) -> None:
    _, stub = by_hand
    owner = Raw(stub, opening())
    held = owner.answer().opened
    code, _ = Raw(stub, attach(held, append_key=held.resume_key)).ending()
    assert code is CODES.NOT_FOUND
    code, _ = Raw(stub, resume(held, resume_key=held.append_key)).ending()
    assert code is CODES.NOT_FOUND
    owner.send(decode_to(5))
    assert owner.tokens(2) == [4, 5]
    owner.cut()


def test_so_many_devices_and_no_more(pair: Pair) -> None:
    devices = [pair.attached() for _ in range(MOST_GUESTS)]
    with pytest.raises(Busy, match="attached"):
        until_it_fails(pair.attach())
    devices[0].close()
    pair.attached().close()


def test_a_resumed_session_has_another_key_and_sends_its_devices_away(
    by_hand: tuple[RemoteSession, object],
) -> None:
    _, stub = by_hand
    owner = Raw(stub, opening())
    held = owner.answer().opened
    device = Raw(stub, attach(held))
    device.answer()
    newer = Raw(stub, resume(held))
    opened = newer.answer().opened
    assert opened.append_key not in (b"", held.append_key)
    assert device.ending()[0] is CODES.FAILED_PRECONDITION
    assert Raw(stub, attach(held)).ending()[0] is CODES.NOT_FOUND
    again = Raw(stub, attach(held, append_key=opened.append_key))
    assert again.answer().opened.length == 3
    for stream in (again, newer, owner):
        stream.cut()


def test_a_device_leaves_with_the_session(pair: Pair) -> None:
    device = pair.attached()
    pair.owner.close()
    with pytest.raises(OutriderError):
        until_it_fails(device)
    with pytest.raises(Gone):
        until_it_fails(pair.attach())


def test_a_draining_target_sends_devices_away() -> None:
    engine = successor_engine()
    with (
        background(engine) as server,
        connect(str(server.address)) as owner,
        connect(str(server.address)) as device,
    ):
        pair = Pair(engine, owner, device)
        second = pair.attached()
        with draining(server), pytest.raises(Unavailable):
            until_it_fails(second)


def test_no_tenant_attaches_to_anothers_session(tmp_path: Path) -> None:
    """Not even with the right key."""
    keys = keys_file(tmp_path / "keys.json", alice={}, bob={})
    security = SecurityOptions(keys_file=keys)
    with (
        background(successor_engine(), security=security) as server,
        connect(str(server.address), security=known_as("alice", tmp_path)) as alice,
        connect(str(server.address), security=known_as("bob", tmp_path)) as bob,
        connect(str(server.address), security=known_as("alice", tmp_path)) as second,
    ):
        session = opened(alice)
        assert session.ticket is not None
        foreign, own = bob.attached(session.ticket), second.attached(session.ticket)
        foreign.open(PROMPT)
        with pytest.raises(Gone):
            until_it_fails(foreign)
        own.open(PROMPT)
        session.decode(Decode(4))
        assert news(own).tokens == (4,)
