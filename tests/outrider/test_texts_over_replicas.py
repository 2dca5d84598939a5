"""Texts over several replicas of a target, through the public interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

import outrider
from grpc_comm.observability.events import SessionOpened
from grpc_comm.server.server import BackgroundServer
from grpc_comm.transport import Address, Endpoint
from outrider.options.roles import ChatRole, TargetRole
from outrider.target.target import load_target
from tests.support.wire_fixtures import WAIT

PROMPT = "def main():"


@contextmanager
def two_targets() -> Iterator[tuple[str, list[list[object]]]]:
    """The embedded target twice: the addresses, and what each one's listener heard."""
    with ExitStack() as stack:
        heard: list[list[object]] = [[], []]
        servers = [
            stack.enter_context(
                BackgroundServer(
                    replace(load_target(TargetRole(port=0, batch=2)), listener=events.append)
                )
            )
            for events in heard
        ]
        yield ",".join(str(server.address) for server in servers), heard


def test_texts_are_spread_over_replicas_and_those_of_one_key_stay_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("grpc_comm.client.replicas.GATHER_SECONDS", WAIT)
    with two_targets() as (addresses, heard), outrider.connect(addresses, draft=False) as engine:

        def sessions() -> list[int]:
            return [sum(isinstance(event, SessionOpened) for event in events) for events in heard]

        texts = {engine.generate(PROMPT, max_tokens=8, prompt_cache_key="a").text for _ in range(4)}
        assert sorted(sessions()) == [0, 4]
        for number in range(12):
            own = engine.generate(PROMPT, max_tokens=8, prompt_cache_key=str(number))
            texts.add(own.text)
        assert min(sessions()) > 0
        assert len(texts) == 1


@pytest.mark.parametrize(
    ("given", "endpoints"),
    [
        ("a", [Endpoint(Address("a", 7))]),
        ("a:1,b", [Endpoint(Address("a", 1)), Endpoint(Address("b", 7))]),
        ("dns:///a", [Endpoint(Address("a", 7), resolved=True)]),
        ("dns:///a:1", [Endpoint(Address("a", 1), resolved=True)]),
    ],
)
def test_a_target_host_may_name_replicas(given: str, endpoints: list[Endpoint]) -> None:
    assert ChatRole(target_host=given, port=7).connection.endpoints == endpoints
