"""A host's own draft adapts by itself: the target's own text whatever it grows, and as much as pays on that host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from grpc_comm.client import Connection
from inference.adaptive import decode_adaptive
from inference.backends.eager import EagerModel
from inference.drafters.hosted import Host, HostedDrafter
from inference.drafters.pool import DraftPool
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY
from inference.fused import fused_rounds
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.navigator import Course, Navigator
from inference.objective import Wish
from inference.policy import Budget, Chain
from inference.sampling import SamplingParams
from inference.stats import Traffic
from tests import pairs
from tests.test_adaptive import adaptive, knowledge
from tests.wire_fixtures import connected

PROMPT, TOKENS = [5, 17, 250, 3, 99], 80
NEVER_STOP: frozenset[int] = frozenset()
SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=3, top_p=0.9), SamplingParams(1.0, seed=4)]
DRAFTS = {
    "close": lambda: pairs.perturbed(1, 0.02),
    "unrelated": lambda: pairs.decoder(99, layers=1),
}
ROOM = 128
ARCHITECTURES = (DISTRIBUTED, FUSED, DISTRIBUTED, TARGET_ONLY)


def host(call: float = 0.001, forward: float = 0.02) -> Host:
    """Whose draft and target take so many seconds, whatever the width."""
    return Host({1: call, 32: call}, {(1, 1): forward, (1, 64): forward}, 63, ROOM)


def model(draft: Decoder) -> EagerModel:
    return EagerModel(draft, rows=2, capacity=pairs.SEQUENCE_LENGTH + ROOM, max_nodes=128)


def expected(params: SamplingParams) -> list[int]:
    """The target's own decoding, in process."""
    verifier = LocalVerifier(pairs.engine(pairs.decoder(1), rows=1))
    verifier.open(PROMPT, params).result()
    return list(verifier.generate(TOKENS, NEVER_STOP))


@pytest.fixture(scope="module", params=DRAFTS)
def draft(request: pytest.FixtureRequest) -> EagerModel:
    return model(DRAFTS[request.param]())


@pytest.fixture(scope="module")
def served(draft: EagerModel) -> Iterator[Connection]:
    hosts = [host(), host()]
    pool = DraftPool(
        draft, Chain(3), ROOM, own=lambda model, row: HostedDrafter(model, hosts[row], row=row)
    )
    with connected(pairs.engine(pairs.decoder(1), rows=2), drafts=pool) as connection:
        yield connection


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_the_text_is_the_targets_own(draft: EagerModel, params: SamplingParams) -> None:
    here = host()
    for _ in range(2):  # the second text is made by what was learned in the first
        verifier = LocalVerifier(pairs.engine(pairs.decoder(1), rows=1))
        rounds = fused_rounds(
            PROMPT, params, HostedDrafter(draft, here, row=1), verifier, TOKENS, NEVER_STOP
        )
        assert [token for made in rounds for token in made.tokens] == expected(params)


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_it_is_what_a_host_lends_to_those_who_ask_for_no_trees_of_their_own(
    served: Connection, params: SamplingParams
) -> None:
    made = list(served.generate(PROMPT, params, TOKENS, NEVER_STOP, fused=True, traffic=Traffic()))
    assert [token for one in made for token in one.tokens] == expected(params)
    chained = list(
        served.generate(
            PROMPT, params, TOKENS, NEVER_STOP, fused=True, traffic=Traffic(), policy=Chain(2)
        )
    )
    assert max(one.drafted for one in chained) == 2  # a busy target may cut some of them
    verifier = served.verifier()
    verifier.open(PROMPT, params).result()
    assert list(verifier.generate(TOKENS, NEVER_STOP, fused=True)) == expected(params)
    verifier.close()


class Turning(Navigator):
    """Takes the next architecture at every decision."""

    turns = 0

    def decide(self) -> Course:
        course = super().decide()
        taken = ARCHITECTURES[self.turns % len(ARCHITECTURES)]
        self.turns += 1
        self._course = course._replace(
            forecast=next(one for one in course.alternatives if one.architecture == taken)
        )
        return self._course


@pytest.mark.parametrize("params", SAMPLINGS, ids=str)
def test_a_text_that_both_hosts_and_the_target_alone_take_turns_at_is_the_targets_own(
    served: Connection, params: SamplingParams
) -> None:
    """Over the wire: rounds with bets, and stretches that are ended in the middle."""
    known = knowledge(link=0.001)
    known.call_there, known.room_there = known.draft.seconds, ROOM
    for draft in DRAFTS.values():
        course, verifier, drafter = (
            Turning(known, Wish(), None, frozenset(ARCHITECTURES), 63),
            served.verifier(),
            adaptive(draft(), known),
        )
        with closing(verifier), closing(drafter):
            steps = list(
                decode_adaptive(PROMPT, params, drafter, verifier, course, TOKENS, NEVER_STOP)
            )
        assert [token for step in steps for token in step.tokens] == expected(params)
        assert {step.stretch for step in steps} == {None, FUSED, TARGET_ONLY}


def test_a_slow_target_is_worth_larger_trees_than_a_fast_one() -> None:
    sizes = []
    for forward in (0.0005, 0.01, 1.0):
        drafter = HostedDrafter(model(DRAFTS["close"]()), host(forward=forward))
        drafter.open(PROMPT, SamplingParams())
        sizes.append(len(drafter.draft(PROMPT[-1], Budget(63, 63))))
        drafter.close()
    assert sizes[0] < sizes[1] < sizes[2]


def test_a_draft_that_is_no_good_is_soon_hardly_asked() -> None:
    ticks = count()
    here = Host(
        {1: 0.004, 32: 0.004},
        {(1, 1): 0.004, (1, 64): 0.004},
        63,
        ROOM,
        clock=lambda: 0.004 * next(ticks),
    )
    verifier = LocalVerifier(pairs.engine(pairs.decoder(1), rows=1))
    drafter = HostedDrafter(model(DRAFTS["unrelated"]()), here)
    drafted = [
        made.drafted
        for made in fused_rounds(PROMPT, SamplingParams(), drafter, verifier, TOKENS, NEVER_STOP)
    ]
    assert sum(size > 0 for size in drafted[40:]) <= len(drafted[40:]) / 4
