"""The rate limit of a key."""

from __future__ import annotations

import pytest

from grpc_comm.server.state import (
    BURST_SECONDS,
    BYTES_PER_SECOND,
    MESSAGES_PER_SECOND,
    NODES_PER_SECOND,
    Allowance,
)
from tests.support.clock import Clock


@pytest.mark.parametrize(
    ("nodes", "size", "rate"),
    [
        (16, 100, NODES_PER_SECOND / 16),
        (0, 4_096, BYTES_PER_SECOND / 4_096),
        (0, 2, MESSAGES_PER_SECOND),
    ],
)
@pytest.mark.parametrize("share", [1, 4])
def test_a_rate_is_held_after_a_burst(nodes: int, size: int, rate: float, share: int) -> None:
    clock = Clock()
    allowance = Allowance(clock)
    burst = round(rate * BURST_SECONDS * share)
    assert all(allowance.charge(nodes, size, share) == 0 for _ in range(burst - 1))
    clock.now += 1e-6
    assert allowance.charge(nodes, size, share) == 0
    early = allowance.charge(nodes, size, share)
    assert early == pytest.approx(1 / rate / share, rel=0.01)
    clock.now += early * 1.001
    assert allowance.charge(nodes, size, share) == 0
    assert allowance.charge(nodes, size, share) > 0


def test_what_is_too_early_does_not_count() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    while allowance.charge(100, 500, 1) == 0:
        pass
    waits = {round(allowance.charge(100, 500, 1), 6) for _ in range(50)}
    assert len(waits) == 1


def test_one_message_of_any_size_is_taken_after_a_rest() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    assert allowance.charge(0, 16 * 2**20, 1) == 0
    assert allowance.charge(0, 2, 1) > 10
    clock.now += 70
    assert allowance.charge(0, 2, 1) == 0
