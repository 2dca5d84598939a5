"""What a server knows of a key: the rate of its messages, and the turns of its new grammars."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from grpc_comm.keys import Key
from grpc_comm.server.state import (
    BURST_SECONDS,
    BYTES_PER_SECOND,
    CHECKS,
    MESSAGES_PER_SECOND,
    NODES_PER_SECOND,
    Allowance,
    RuleTurns,
)
from inference.errors import Busy, InvalidRequest
from tests.support.clock import Clock
from tests.support.wire_fixtures import WAIT

ALICE, BOB = Key("alice"), Key("bob")

RATES = {
    (16, 100): NODES_PER_SECOND / 16,
    (0, 4_096): BYTES_PER_SECOND / 4_096,
    (0, 2): MESSAGES_PER_SECOND,
}
"""Messages a second, by their nodes and bytes."""


@pytest.mark.parametrize(("nodes", "size"), RATES)
@pytest.mark.parametrize("share", [1, 4])
def test_a_rate_is_held_after_a_burst(nodes: int, size: int, share: int) -> None:
    clock, rate = Clock(), RATES[nodes, size] * share
    allowance = Allowance(clock)
    burst = round(rate * BURST_SECONDS)
    assert all(allowance.charge(nodes, size, share) == 0 for _ in range(burst - 1))
    clock.now += 1e-6
    assert allowance.charge(nodes, size, share) == 0
    early = {round(allowance.charge(nodes, size, share), 6) for _ in range(50)}
    assert [*early] == pytest.approx([1 / rate], rel=0.01)  # what is too early does not count
    clock.now += 1.001 / rate
    assert allowance.charge(nodes, size, share) == 0
    assert allowance.charge(nodes, size, share) > 0


def test_one_message_of_any_size_is_taken_after_a_rest() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    assert allowance.charge(0, 16 * 2**20, 1) == 0
    assert allowance.charge(0, 2, 1) > 10
    clock.now += 70
    assert allowance.charge(0, 2, 1) == 0


class Compile:
    """A check that takes until the gate opens."""

    def __init__(self) -> None:
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.gate.wait(WAIT)

    async def begins(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, WAIT)


def quick() -> None:
    """A check that ends at once."""


@pytest.fixture
def turns() -> Iterator[RuleTurns]:
    turns = RuleTurns()
    yield turns
    turns.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_a_key_waits_for_its_own_checks_and_others_do_not(turns: RuleTurns, leaves: bool) -> None:
    """Nor does who leaves get another turn before its check ends."""

    async def scene() -> None:
        slow, next_one = Compile(), Compile()
        first = asyncio.create_task(turns.check(ALICE, slow, 9))
        await slow.begins()
        second = asyncio.create_task(turns.check(ALICE, next_one, 9))
        if leaves:
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
        for _ in range(2 * CHECKS):
            await turns.check(BOB, quick, 9)
        assert not next_one.begun.is_set()
        slow.gate.set()
        if not leaves:
            await first
        await next_one.begins()
        next_one.gate.set()
        await second

    asyncio.run(scene())


def test_a_key_queues_so_many_grammars_and_no_more(turns: RuleTurns) -> None:
    def refuse() -> None:
        raise InvalidRequest("no grammar")

    async def scene() -> None:
        slow = Compile()
        first = asyncio.create_task(turns.check(ALICE, slow, 2))
        await slow.begins()
        second = asyncio.create_task(turns.check(ALICE, quick, 2))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 new grammars"):
            await turns.check(ALICE, quick, 2)
        await turns.check(BOB, quick, 2)
        slow.gate.set()
        await asyncio.gather(first, second)
        with pytest.raises(InvalidRequest, match="no grammar"):
            await turns.check(ALICE, refuse, 2)
        await turns.check(ALICE, quick, 2)

    asyncio.run(scene())


def test_rules_without_a_new_grammar_wait_for_no_check(turns: RuleTurns) -> None:
    async def scene() -> None:
        slow = [Compile() for _ in range(CHECKS + 1)]
        keys = [ALICE, *(Key(str(number)) for number in range(CHECKS))]
        checks = [turns.check(key, one, 9) for key, one in zip(keys, slow, strict=True)]
        waiting = asyncio.gather(*checks, turns.check(ALICE, quick, 9))
        await slow[0].begins()
        for _ in range(2 * CHECKS):
            assert await asyncio.wait_for(turns.make(lambda: None), WAIT) is None
        for one in slow:
            one.gate.set()
        await waiting

    asyncio.run(scene())
