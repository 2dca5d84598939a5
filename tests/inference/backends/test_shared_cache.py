"""A draft on its target's cache, while its clients make requests. What it writes is proven in
tests/inference/engine/test_beside_contract.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode
from tests.support.beside import layers_beside
from tests.support.clock import Clock
from tests.support.exact import asked, finish


class BusyClock(Clock):
    """Makes a client's request when it has been looked at so many times."""

    looks, request = 0, staticmethod(lambda: None)

    def __call__(self) -> float:
        self.looks -= 1
        if not self.looks:
            self.request()
        return super().__call__()


REQUESTS: dict[str, Callable[[Engine, Session], None]] = {
    "close": Engine.close,
    "detach": Engine.detach,
    "drain": Engine.drain,
    "end": lambda engine, session: engine.decode(session, Decode(session.length, beside=True)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_at_any_moment_of_drafting_harms_no_other_session(name: str) -> None:
    """Not even where the session of the request loses its row, or its text ends."""
    engine, _draft = layers_beside(clock := BusyClock())
    other = asked(engine, [6, 17, 3], 200, beside=True)
    for looks in range(1, 9):
        session = asked(engine, [5, 17, 3], 30, beside=True)
        while session.made < 5:
            engine.step()
        clock.looks, clock.request = looks, partial(REQUESTS[name], engine, session)
        engine.step()
        assert clock.looks <= 0
        engine.close(session)
    finish(engine, other)
    assert other.made == 200


@pytest.mark.parametrize("name", REQUESTS)
def test_a_draft_makes_no_call_for_a_text_whose_latest_tokens_it_lacks(name: str) -> None:
    """Its client ended it after the step had begun, when a call was due: before that, another
    session, which has no draft, had no credit for it.
    """
    engine, draft = layers_beside(clock := BusyClock())
    other = asked(engine, [6, 17, 3], 100)
    session = asked(engine, [5, 17, 3], 60, beside=True)
    while draft.ranked < 3 or other.service_credit <= 0:
        engine.step()
    clock.looks, clock.request = 2, partial(REQUESTS[name], engine, session)
    finish(engine, other)
    assert clock.looks < 0
    assert other.made == 100
