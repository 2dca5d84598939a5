"""A hostile client: sessions with other values in any field, in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import grpc

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import RULES_VERSION
from tests.simulate.network import Network
from tests.simulate.plan import ClientPlan
from tests.simulate.wire_client import Channel
from tests.support.hostile import ENDINGS, RIGHT, SESSION, bearer, resume
from tests.support.mutator import Mutator
from tests.support.wire_fixtures import opening

CONVERSATIONS = 6
LINGER_SECONDS = 0.05
RULE: dict[str, Any] = {
    "protocol_version": RULES_VERSION,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "bias_ids": [5, 6],
    "biases": [2.0, -100.0],
    "made": 1,
}
"""Fields of an Open that this target takes."""

BESIDE = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INTERNAL,
}
"""Codes that other things than its messages bring."""


class Hostile:
    """One such client, on its thread."""

    def __init__(self, plan: ClientPlan, network: Network, addresses: Sequence[str]) -> None:
        self._chance = random.Random(f"{plan.number} {plan.starts} hostile")
        self._network, self._kernel, self._tenant = network, network.kernel, plan.tenant
        self._channel = Channel(network, addresses[plan.number % len(addresses)])

    def rage(self) -> None:
        """Say what it says, and end."""
        mutator = Mutator(self._chance, (16, 512, 1000))
        for _ in range(CONVERSATIONS):
            name = f"{self._chance.getrandbits(64):016x}"
            rule = RULE if self._chance.random() < 0.3 else {}
            first = opening(session_id=name, **rule)
            messages = self._theft() or mutator.session(first, RIGHT)
            begin = self._channel.stream_stream(SESSION)
            call = begin(self._said(messages), timeout=30.0, metadata=bearer(self._tenant))
            leaves = self._chance.random() < 0.3
            with suppress(grpc.RpcError):
                for _ in call:
                    if leaves:
                        call.cancel()
            if call.code() not in ENDINGS | BESIDE | {grpc.StatusCode.DEADLINE_EXCEEDED}:
                self._kernel.crashes.append(f"a hostile call ended with {call.code()}")
        self._channel.close()

    def _theft(self) -> list[bytes]:
        """What resumes another's session, but for its key; at times, and where there is one."""
        servers = self._network.listeners.values()
        tables = [one.process.holds.get("session records") for one in servers]
        records = [record for table in tables if table for record in table.records.values()]
        held = [one for one in records if one.tenant == self._tenant]
        if not held or self._chance.random() < 0.5:
            return []
        one = self._chance.choice(held)
        opened = pb.Opened(session_id=one.session_id, resume_key=bytes(16))
        theft = resume(opened, epoch=1 << 20, length=one.session.length)
        return [theft.SerializeToString()]

    def _said(self, messages: list[bytes]) -> Iterator[bytes]:
        yield from messages
        self._kernel.sleep(LINGER_SECONDS)
