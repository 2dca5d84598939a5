"""A target is what it was before a campaign of messages that no honest client sends.

The target is a process of its own with the embedded pair, its draft, and rules. Hostile clients
send sessions with other values in any field and damaged bytes, and leave. Each call must end in
time with a code that the protocol lists, a neighbour's texts and those made afterwards must be what
they were before, and the target must hold no session, log no error and need no more memory.

CAMPAIGN_MESSAGES=N sends N of them in place of 1,000.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import grpc
import pytest

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description
from inference.order import Decode, Pace
from inference.sampling import SamplingParams
from outrider.target.spawn import started
from tests.support.drafts import copying, text_of
from tests.support.hostile import DESCRIBE, ENDINGS, RIGHT, SESSION, WITH_A_RULE, converse
from tests.support.mutator import Mutator
from tests.support.wire_fixtures import eventually, opening, resident

pytestmark = pytest.mark.extended

MESSAGES = int(os.environ.get("CAMPAIGN_MESSAGES", "1000"))
AT_ONCE, TOKENS, LEASE_SECONDS = 8, 12, 2.0
MAX_GROWTH = 128 * 2**20
"""Bytes by which the target's memory may grow once it is warm."""

FLAGS = f"--batch 16 --sequence_length 96 --lease {LEASE_SECONDS} --log text --log_level error"
OWN = (("grpc.use_local_subchannel_pool", 1),)
"""Each client has a connection of its own."""

SAMPLINGS = [SamplingParams(temperature, seed=5) for temperature in (0.0, 0.7, 1.0)]
REQUIRED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}


def text(connection: Connection, params: SamplingParams, beside: bool, pace: Pace) -> list[int]:
    """A text with copies by the client, or with the draft beside the target."""
    prompt = [3, 7, 3, 7, 3, 7, 11]
    order = Decode(len(prompt) + TOKENS, pace=pace, beside=beside)
    with closing(connection.session()) as session:
        return text_of(prompt, params, session, order, [] if beside else [copying()])


def texts(connection: Connection) -> list[list[int]]:
    """What every way of asking brings."""
    ways = [(beside, pace) for beside in (False, True) for pace in Pace]
    return [text(connection, params, *way) for params in SAMPLINGS for way in ways]


def wage(address: str, served: Description, messages: int) -> Counter[grpc.StatusCode]:
    """Codes with which the calls of so many messages ended."""
    near = [value for value in vars(served).values() if type(value) is int]
    known = {
        "tokenizer_fingerprint": served.tokenizer_fingerprint,
        "model_fingerprint": served.model_fingerprint,
    }

    def client(number: int) -> Counter[grpc.StatusCode]:
        chance, codes, sent = random.Random(number), Counter[grpc.StatusCode](), 0
        mutator = Mutator(chance, near)
        with grpc.insecure_channel(address, OWN) as channel:
            while sent < messages / AT_ONCE:
                first = opening(**known, **(WITH_A_RULE if chance.random() < 0.3 else {}))
                method, hostile = SESSION, mutator.session(first, RIGHT)
                if chance.random() < 0.1:
                    request = mutator.afresh(pb.DescribeRequest).SerializeToString()
                    method, hostile = DESCRIBE, [mutator.damaged(request)]
                code, _ = converse(channel, hostile, method, leaves=chance.random() < 0.01)
                codes[code] += 1
                sent += len(hostile)
        return codes

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(client, range(AT_ONCE)), Counter())


def compare_until(over: Event, connect_anew: Callable[[], Connection], own: list[int]) -> int:
    """A neighbour's texts meanwhile, all of them right. Returns how many there were."""
    count = 0
    with connect_anew() as connection:
        while not over.is_set():
            assert text(connection, SAMPLINGS[count % 3], False, Pace.GO_ON) == own[count % 3]
            count += 1
    return count


def test_a_target_is_the_same_after_a_campaign() -> None:
    flags = [*FLAGS.split(), "--measure_first"]  # a target that measures while it is idle says so
    with started("fused_target", flags) as target, ThreadPoolExecutor(1) as pool:

        def connect_anew() -> Connection:
            return connect(target.address, timeout=30, patience=Patience(30.0))

        with connect_anew() as connection:
            before, over, served = texts(connection), Event(), connection.description
            target.log_lines.clear()  # of its start
            own = before[:: len(before) // 3]
            neighbour = pool.submit(compare_until, over, connect_anew, own)
            try:
                codes = wage(target.address, served, MESSAGES // 10)
                warm = resident(target.pid)
                codes += wage(target.address, served, MESSAGES)
            finally:
                over.set()
            assert neighbour.result() > 0
            assert texts(connection) == before
        eventually(lambda: sessions_of(target.address) == 0)
        assert resident(target.pid) - warm < MAX_GROWTH
        logged = list(target.log_lines)
    assert logged == []
    assert REQUIRED <= set(codes) <= {*ENDINGS, grpc.StatusCode.CANCELLED}, codes


def sessions_of(address: str) -> int:
    with connect(address) as connection:
        return connection.description.sessions
