"""A draft on its target's cache only reads it, and no prompt is computed for the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from inference.backends import Chosen, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.substitute_model import SharedCacheModel, SharedSequence
from inference.drafters.growing_proposer import Draft
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.model.decoder import Decoder
from inference.order import Decode
from inference.proposer import COLOCATED
from inference.sampling import SamplingParams
from tests.support import pairs
from tests.support.beside import CALL, TimedTarget, engine_beside
from tests.support.clock import Clock
from tests.support.exact import asked, finish
from tests.support.models import SAMPLINGS

TARGET: Any = pairs.decoder(1)
OWN = 128
TARGET.lm_head.weight.data *= 8  # sure of its tokens: a draft of a target that is not falls silent


class Watched(SharedCacheModel):
    """Counts its calls, which take their time, and checks that none changes the target's cache."""

    ranked = chosen = 0

    def __init__(self, decoder: Decoder, target: EagerModel, clock: Clock) -> None:
        super().__init__(decoder, target, slots=OWN, max_nodes=64)
        self._clock = clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.ranked += 1
        self._clock.now += CALL
        before = [held.clone() for held in self.target_cache.tensors]
        answer = super().rank(segments, k)
        assert all(map(torch.equal, before, self.target_cache.tensors))
        return answer

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.chosen += 1
        return super().choose(segments)


class BusyClock(Clock):
    """Makes a client's request when it has been looked at so many times."""

    looks, request = 0, staticmethod(lambda: None)

    def __call__(self) -> float:
        self.looks -= 1
        if not self.looks:
            self.request()
        return super().__call__()


def beside(draft: Decoder, clock: Clock | None = None) -> tuple[Engine, Watched]:
    target = TimedTarget(TARGET, clock := clock or Clock())
    shared = Watched(draft, target, clock)
    beside = Draft(shared, sequence=partial(SharedSequence, OWN))
    return engine_beside(target, beside, OWN, clock), shared


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=str)
def test_a_draft_with_the_targets_layers_is_right_all_along(params: SamplingParams) -> None:
    """So through all re-rooting it sees what the target sees."""
    engine, draft = beside(TARGET)
    prompts = (pairs.prompt_of(300), [7])
    sessions = [asked(engine, prompt, 120, params, beside=True) for prompt in prompts]
    finish(engine, *sessions)
    for session in sessions:
        assert session.proposers.count(COLOCATED) + session.spent.forwards == 120
        assert session.spent.forwards < 40
    assert draft.chosen == 0, "no prompt is computed for it"


def test_a_draft_follows_its_session_to_another_row() -> None:
    engine, _draft = beside(TARGET)
    first = asked(engine, [5, 17, 3], 30, SAMPLINGS[2], beside=True)
    finish(engine, first)
    engine.detach(first)
    prompts = ([number, 9, 9, 2] for number in (1, 2))
    others = [asked(engine, prompt, 30, SAMPLINGS[2], beside=True) for prompt in prompts]
    finish(engine, *others)
    assert first.row is None
    for other in others:
        engine.detach(other)
    engine.attach(first)
    engine.decode(first, Decode(93, credit=512, beside=True))
    before = first.spent.forwards
    finish(engine, first)
    assert first.spent.forwards - before < 25, "of 60 tokens"


REQUESTS: dict[str, Callable[[Engine, Session], None]] = {
    "close": Engine.close,
    "detach": Engine.detach,
    "drain": Engine.drain,
    "end": lambda engine, session: engine.decode(session, Decode(session.length, beside=True)),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_at_any_moment_of_drafting_harms_no_other_session(name: str) -> None:
    """Not even where the session of the request loses its row, or its text ends."""
    engine, _draft = beside(TARGET, clock := BusyClock())
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
    engine, draft = beside(TARGET, clock := BusyClock())
    other = asked(engine, [6, 17, 3], 100)
    session = asked(engine, [5, 17, 3], 60, beside=True)
    while draft.ranked < 3 or other.service_credit <= 0:
        engine.step()
    clock.looks, clock.request = 2, partial(REQUESTS[name], engine, session)
    finish(engine, other)
    assert clock.looks < 0
    assert other.made == 100
