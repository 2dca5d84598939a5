"""A target whose keys share prefixes: rows are common, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import grpc

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.security import SecurityOptions
from tests.support.hostile import Outbox, bearer, keys_file, say
from tests.support.wire_fixtures import (
    WAIT,
    background,
    chain_of,
    decode_to,
    eventually,
    opening,
    raw_stub,
    successor_engine,
)


def test_what_one_key_claimed_in_vain_says_nothing_of_another_that_shares_its_rows(
    tmp_path: Path,
) -> None:
    engine, prompt = successor_engine(rows=2), list(range(1, 40))
    base = len(prompt) - 1
    options = SecurityOptions(keys_file=keys_file(tmp_path / "keys.json", alice={}, bob={}))
    with background(engine, security=options, share_prefixes=True) as server:
        said = say(server.address, [opening(prompt=prompt), decode_to(41)], "alice")
        assert said.code is grpc.StatusCode.OK
        with raw_stub(server.address) as stub:
            wait = decode_to(45, pace=pb.Decode.WAIT)
            outbox = Outbox([opening(prompt=prompt), wait, chain_of([7, 7], base)])
            call = stub.Session(outbox, metadata=bearer("bob"), timeout=WAIT)
            next(call)
            [session] = engine.sessions
            assert (session.tenant, session.reused) == ("bob", base)
            eventually(lambda: session.candidates.live == 2)
            outbox.put(pb.ClientMessage(go=pb.Go(base=base)))
            eventually(lambda: bool(engine.calibrations["bob"].factors))
            outbox.end()
    assert engine.calibrations["alice"].factors == {}
