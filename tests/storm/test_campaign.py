"""A target is what it was before a campaign of messages that no honest client sends.

The target is a process of its own with the embedded pair, the draft beside it. Hostile clients say
sessions with other values in any field, damaged bytes, in any order, and leave. Every call has to
end in time with a code that the protocol lists. A neighbour's texts, and afterwards every way to
ask for a text, must bring what they brought before; the target must hold no session, log no error
and need no more memory.

CAMPAIGN_MESSAGES=N sends N of them in place of 1,000.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Event

import grpc
import pytest

from grpc_comm.client.connection import connect
from grpc_comm.client.patience import Patience
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import Description
from inference.order import Pace
from outrider.target.spawn import started
from tests.storm.clients import Text, again, own_text, sessions_held
from tests.support.hostile import DESCRIBE, ENDINGS, RIGHT, SESSION, WITH_A_RULE, converse
from tests.support.mutator import Mutator
from tests.support.wire_fixtures import opening, resident

pytestmark = pytest.mark.extended

MESSAGES = int(os.environ.get("CAMPAIGN_MESSAGES", "1000"))
AT_ONCE, TOKENS, TEXTS, LEASE_SECONDS = 8, 12, 3, 2.0
PATIENCE = Patience(30.0)
MOST_GROWTH = 128 * 2**20
"""Bytes by which the target's memory may grow once it is warm."""

FLAGS = {
    "batch": 16,
    "sequence_length": 96,
    "lease": LEASE_SECONDS,
    "log": "text",
    "log_level": "error",
}
OWN = (("grpc.use_local_subchannel_pool", 1),)
"""Each client has a connection of its own."""


def wage(address: str, served: Description, messages: int) -> Counter[grpc.StatusCode]:
    """Codes with which the calls of so many messages ended."""
    near = [value for value in vars(served).values() if type(value) is int]
    known = {
        "tokenizer_fingerprint": served.tokenizer_fingerprint,
        "model_fingerprint": served.model_fingerprint,
    }

    def client(number: int) -> Counter[grpc.StatusCode]:
        chance, codes, said = random.Random(number), Counter[grpc.StatusCode](), 0
        mutator = Mutator(chance, near)
        with grpc.insecure_channel(address, OWN) as channel:
            while said < messages / AT_ONCE:
                first = opening(**known, **(WITH_A_RULE if chance.random() < 0.3 else {}))
                method, hostile = SESSION, mutator.session(first, RIGHT)
                if chance.random() < 0.1:
                    request = mutator.afresh(pb.DescribeRequest).SerializeToString()
                    method, hostile = DESCRIBE, [mutator.damaged(request)]
                code, _ = converse(channel, hostile, method, leaves=chance.random() < 0.01)
                codes[code] += 1
                said += len(hostile)
        return codes

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return sum(pool.map(client, range(AT_ONCE)), Counter())


def go_on(address: str, texts: Sequence[Text], over: Event) -> int:
    """Texts of a neighbour meanwhile, all of them right."""
    made = 0
    with connect(address, timeout=30, patience=PATIENCE) as connection:
        while not over.is_set():
            for text in texts:
                assert again(connection, text, alone=False, pace=Pace.GO_ON) == text.due
                made += 1
    return made


def test_a_target_is_the_same_after_a_campaign() -> None:
    flags = [word for name, value in FLAGS.items() for word in (f"--{name}", str(value))]
    flags.append("--measure_first")  # a target that measures while it is idle says so
    with started("fused_target", flags) as target, ThreadPoolExecutor(1) as pool:
        with connect(target.address, timeout=30, patience=PATIENCE) as connection:
            served, over = connection.description, Event()
            with closing(connection.session()) as session:
                texts = [own_text(session, at, TOKENS, served.vocabulary) for at in range(TEXTS)]
            target.said.clear()  # of its start
            neighbour = pool.submit(go_on, target.address, texts, over)
            try:
                codes = wage(target.address, served, MESSAGES // 10)
                warm = resident(target.pid)
                codes += wage(target.address, served, MESSAGES)
            finally:
                over.set()
            assert neighbour.result() > 0
            for text in texts:
                for alone in (False, True):
                    for pace in Pace:
                        assert again(connection, text, alone=alone, pace=pace) == text.due
        assert sessions_held(target.address, 3 * LEASE_SECONDS + 10) == 0
        assert resident(target.pid) - warm < MOST_GROWTH
        said = list(target.said)
    assert said == []
    assert set(codes) <= {*ENDINGS, grpc.StatusCode.CANCELLED}, codes
    assert {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
    } <= set(codes)
