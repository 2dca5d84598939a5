"""A PARD-2 draft beside its target, in an engine: the text is the target's own, and a call reads
the states of its sessions' texts as they are then.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import pytest
import torch

from inference.backends import Ranked, Segment
from inference.backends.pard import DependentModel, RenewedSequence
from inference.drafters.model_proposer import ROOM
from inference.engine.engine import Engine
from inference.engine.host import Host
from inference.engine.local_session import LocalSession
from inference.engine.session import Session
from inference.engine.target_rows import led_by_row
from inference.link_times import LinkTimes
from inference.model.decoder import Decoder, Layer
from inference.model.pard import Projection
from inference.order import Decode
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.support import pairs
from tests.support.clock import Clock
from tests.support.drafts import text_of
from tests.support.equality import NearTies, assert_same_text
from tests.support.exact import finish, opened
from tests.support.pard_files import random_weight
from tests.support.timed_target import FORWARD, TimedTarget

TARGET, LENGTH, TOKENS = pairs.decoder(1), pairs.SEQUENCE_LENGTH, 40
HIDDEN = TARGET.config.hidden_size
CALL = 0.0002


class Answer(NamedTuple):
    """What a call named first at each node of a row, and the position of the text's root."""

    row: int
    root: int
    first: list[int]


class Calls(DependentModel):
    """A draft whose calls take their time. said: what each call that ranks answered to each row."""

    clock: Clock

    def __init__(self, decoder: Decoder, projection: Projection) -> None:
        sizes = {"rows": 2, "capacity": LENGTH + ROOM, "max_nodes": 128}
        super().__init__(decoder, projection, pairs.MASKS, **sizes)
        self.said = list[Answer]()

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now += CALL
        ranked = super().rank(segments, k)
        for segment, answer in zip(segments, ranked, strict=True):
            assert segment.led is not None
            self.said.append(Answer(segment.row, segment.led.known.stop, answer.ids[:, 0].tolist()))
        return ranked


class Beside:
    """An engine with a draft beside its target, on a clock of the test."""

    def __init__(self, draft: Decoder, projection: Projection) -> None:
        clock = Clock()
        target = TimedTarget(TARGET, rows=2, capacity=LENGTH + 64, max_nodes=64)
        target.keep_features(projection.kept)
        self.draft = Calls(draft, projection)
        target.clock = self.draft.clock = clock
        times = {(row, nodes): FORWARD for row in (1, 2) for nodes in (1, 2, 4, 8, 16, 32, 64)}
        known = partial(
            Knowledge, DraftTimes({1: CALL}), LatencyModel(times), LinkTimes(), read_acceptance()
        )
        self.engine = Engine(
            target,
            sequence_length=LENGTH,
            max_tree_nodes=64,
            vocabulary=pairs.VOCABULARY,
            times=LatencyModel(times, measured=True),
            host=Host(
                self.draft,
                known,
                room=ROOM,
                sequence=partial(led_by_row, target, made=RenewedSequence),
                clock=clock,
            ),
            clock=clock,
        )

    def asked(self, prompt: Sequence[int]) -> Session:
        session = opened(self.engine, prompt)
        self.engine.decode(session, Decode(len(prompt) + TOKENS, credit=512, beside=True))
        return session


def random_pair() -> Beside:
    """A draft that has nothing to do with its target, and a projection at random."""
    weight = random_weight(HIDDEN, 2 * HIDDEN)
    return Beside(pairs.decoder(2), Projection((2, 0), TARGET.model.norm, 2, 0.02, weight, None))


def echo() -> Beside:
    """A draft that says nothing of its own: at a token it names what the target said before it."""
    draft = pairs.decoder(1)
    draft.model.embed_tokens.weight.zero_()
    draft.model.norm.weight.fill_(1)
    for layer in draft.model.layers:
        assert isinstance(layer, Layer)
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    projection = Projection((2,), TARGET.model.norm, 2, 1.0, torch.eye(HIDDEN), None)
    return Beside(draft, projection)


@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)], ids=str
)
def test_the_text_is_the_targets_own_seeded_decoding(
    params: SamplingParams, ties: NearTies
) -> None:
    beside, prompt = random_pair(), pairs.prompt_of(20)

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        order = Decode(len(prompt) + tokens, beside=True)
        return text_of(prompt, params, LocalSession(beside.engine), order)

    alone = LocalSession(pairs.engine(TARGET))
    own = text_of(prompt, params, alone, Decode(len(prompt) + TOKENS))
    assert_same_text(TARGET, prompt, params, own, produce, ties)
    assert beside.draft.said


def test_every_call_reads_the_states_before_the_roots_of_its_texts() -> None:
    """So a draft that repeats what these states say names the root, everywhere."""
    beside, length = echo(), 20
    sessions = [beside.asked(pairs.prompt_of(seed)[-length:]) for seed in (20, 31)]
    finish(beside.engine, *sessions)
    read = [one for one in beside.draft.said if one.root >= length]
    for row in (0, 1):
        mine = [one for one in read if one.row == row]
        assert len(mine) > 4
        assert any(
            all(set(one.first) == {session.tokens[one.root]} for one in mine)
            for session in sessions
        )
