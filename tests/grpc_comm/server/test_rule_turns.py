"""Rules are made beside the event loop, one at a time for each key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from grpc_comm.keys import Key
from grpc_comm.server.rule_turns import THREADS, RuleTurns
from inference.errors import Busy, InvalidRequest
from tests.support.wire_fixtures import WAIT

ALICE, BOB = Key("alice"), Key("bob")


class Compile:
    """A rule that takes until the gate opens."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.gate.wait(WAIT)

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, WAIT)


def quick() -> None:
    """A rule that is there already."""


@pytest.fixture
def turns() -> Iterator[RuleTurns]:
    turns = RuleTurns()
    yield turns
    turns.close()


def test_a_key_waits_for_its_own_rules_and_others_do_not(turns: RuleTurns) -> None:
    async def scene() -> None:
        slow, next_one = Compile(), Compile()
        first = asyncio.create_task(turns.make(ALICE, slow, 9))
        await slow.begins()
        second = asyncio.create_task(turns.make(ALICE, next_one, 9))
        for _ in range(2 * THREADS):
            await turns.make(BOB, quick, 9)
        assert not next_one.begun.is_set()
        slow.gate.set()
        await first
        await next_one.begins()
        next_one.gate.set()
        await second

    asyncio.run(scene())


def test_who_leaves_does_not_get_another_turn_before_its_rule_is_made(turns: RuleTurns) -> None:
    async def scene() -> None:
        slow, next_one = Compile(), Compile()
        first = asyncio.create_task(turns.make(ALICE, slow, 9))
        await slow.begins()
        second = asyncio.create_task(turns.make(ALICE, next_one, 9))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await turns.make(BOB, quick, 9)
        assert not next_one.begun.is_set()
        slow.gate.set()
        await next_one.begins()
        next_one.gate.set()
        await second

    asyncio.run(scene())


def test_a_refused_rule_is_told_and_the_next_one_made(turns: RuleTurns) -> None:
    def refuse() -> None:
        raise InvalidRequest("no grammar")

    async def scene() -> None:
        with pytest.raises(InvalidRequest, match="no grammar"):
            await turns.make(ALICE, refuse, 1)
        await turns.make(ALICE, quick, 1)

    asyncio.run(scene())


def test_a_key_has_so_many_rules_in_line_and_no_more(turns: RuleTurns) -> None:
    async def scene() -> None:
        slow = Compile()
        first = asyncio.create_task(turns.make(ALICE, slow, 2))
        await slow.begins()
        second = asyncio.create_task(turns.make(ALICE, quick, 2))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 grammars"):
            await turns.make(ALICE, quick, 2)
        await turns.make(BOB, quick, 2)
        slow.gate.set()
        await asyncio.gather(first, second)

    asyncio.run(scene())
