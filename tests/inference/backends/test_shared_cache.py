"""A draft on its target's cache: the text is the target's own, the target's keys are only read, and
no prompt is computed for the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from inference.backends import Chosen, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.substitute_model import SharedCacheModel, SharedSequence
from inference.drafters.draft import Draft
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.model.decoder import Decoder
from inference.order import Decode, End
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.proposer import COLOCATED
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.support import pairs
from tests.support.clock import Clock
from tests.support.exact import opened

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)]
TARGET, LENGTH, OWN = pairs.decoder(1), pairs.SEQUENCE_LENGTH, 128
TARGET.lm_head.weight.data *= 8  # sure of its tokens: a draft of a target that is not falls silent


class Timed(EagerModel):
    """A target whose forwards take 10 ms by the test's clock."""

    def __init__(self, decoder: Decoder, clock: Clock) -> None:
        super().__init__(decoder, rows=2, capacity=LENGTH + 64, max_nodes=64)
        self._clock = clock

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self._clock.now += 0.01
        return super().choose(segments)


class Watched(SharedCacheModel):
    """Counts its calls, which take 1 ms, and checks that none changes the target's cache."""

    ranked = chosen = 0

    def __init__(self, decoder: Decoder, target: EagerModel, clock: Clock) -> None:
        super().__init__(decoder, target, own=OWN, max_nodes=64)
        self._clock = clock

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.ranked += 1
        self._clock.now += 0.001
        before = [held.clone() for held in self.read.tensors]
        answer = super().rank(segments, k)
        assert all(map(torch.equal, before, self.read.tensors))
        return answer

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self.chosen += 1
        return super().choose(segments)


def known() -> Knowledge:
    target = LatencyModel({(1, 1): 0.01, (1, 64): 0.01})
    return Knowledge(DraftTimes({1: 0.001}), target, read_acceptance())


def beside(draft: Decoder) -> tuple[Engine, Watched]:
    """The random target, with a draft beside it that reads its cache."""
    clock = Clock()
    model = Timed(TARGET, clock)
    shared = Watched(draft, model, clock)
    engine = Engine(
        model,
        sequence_length=LENGTH,
        max_tree_nodes=64,
        vocabulary=pairs.VOCABULARY,
        times=LatencyModel({(1, 1): 0.01, (1, 64): 0.01, (2, 64): 0.01}, measured=True),
        drafter=ColocatedDrafter(
            Draft(shared, sequence=partial(SharedSequence, OWN)), known, room=OWN, clock=clock
        ),
        clock=clock,
    )
    return engine, shared


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_draft_with_the_targets_layers_is_right_all_along(params: SamplingParams) -> None:
    """So through all re-rooting it sees what the target sees."""
    engine, draft = beside(TARGET)
    sessions = [asked(engine, prompt, params, 120) for prompt in (pairs.prompt_of(300), [7])]
    finish(engine, sessions)
    for session in sessions:
        assert session.proposers.count(COLOCATED) + session.spent.forwards == 120
        assert session.spent.forwards < 40
    assert draft.chosen == 0, "no prompt is computed for it"


def test_a_draft_follows_its_session_to_another_row() -> None:
    engine, _draft = beside(TARGET)
    first = asked(engine, [5, 17, 3], SAMPLINGS[2], 30)
    finish(engine, [first])
    engine.detach(first)
    others = [asked(engine, [number, 9, 9, 2], SAMPLINGS[2], 30) for number in (1, 2)]
    finish(engine, others)
    assert first.row is None
    for other in others:
        engine.detach(other)
    engine.attach(first)
    engine.decode(first, Decode(93, credit=512, beside=True))
    before = first.spent.forwards
    finish(engine, [first])
    assert first.spent.forwards - before < 25, "of 60 tokens"


def asked(engine: Engine, prompt: Sequence[int], params: SamplingParams, tokens: int) -> Session:
    session = opened(engine, prompt, params)
    engine.decode(session, Decode(len(prompt) + tokens, credit=512, beside=True))
    return session


def finish(engine: Engine, sessions: Sequence[Session]) -> None:
    """Make forwards until these texts have ended; their clients read at once."""
    while any(session.end is End.NOT for session in sessions):
        assert engine.step(), "somebody can go on"
        for session in sessions:
            engine.acknowledge(session, session.length)
