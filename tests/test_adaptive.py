"""Adaptive drafting changes how fast a text is made and never which: bets, re-rooted trees, architectures that change in between."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing

import pytest

from inference.accept import Verdict
from inference.acceptance import read_acceptance
from inference.adaptive import decode_adaptive
from inference.backends.eager import EagerModel
from inference.decode import Step, Superseded
from inference.drafters.adaptive import MOST_RANKED, AdaptiveDrafter
from inference.engine import Engine
from inference.forecast import DISTRIBUTED, TARGET_ONLY
from inference.local import LocalVerifier
from inference.model.decoder import Decoder
from inference.navigator import Course, Navigator
from inference.objective import Wish
from inference.pilot import Knowledge, Pilot
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LinkTimes, TargetTimes
from inference.tree import TokenTree
from tests.equality import NearTies, assert_same_text
from tests.pairs import SEQUENCE_LENGTH, decoder, perturbed
from tests.test_lossless import SAMPLINGS, alone, prompt_of

DRAFTS = {"close": perturbed(1, 0.02), "unrelated": decoder(99, layers=1)}


class _Later(Future[Verdict]):
    """Is seen to be done only when somebody has looked `looks` times."""

    def __init__(self, verdict: Verdict, looks: int) -> None:
        super().__init__()
        self.set_result(verdict)
        self._looks = looks

    def done(self) -> bool:
        self._looks -= 1
        return self._looks < 0


class LateVerifier(LocalVerifier):
    """Leaves the draft time for so many calls before each verdict is there."""

    looks = 4
    _came_to: Sequence[int] = ()

    def submit(self, tree: TokenTree, assumed: Sequence[int] | None = None) -> Future[Verdict]:
        if assumed is not None and list(assumed) != self._came_to:
            dead: Future[Verdict] = Future()
            dead.set_exception(Superseded("the round before it came out otherwise"))
            self._came_to = ()
            return dead
        verdict = super().submit(tree).result()
        self._came_to = Step(tree, verdict).tokens
        return _Later(verdict, self.looks)


def knowledge(link: float = 0.3) -> Knowledge:
    """A link of this round trip, a fast draft, a slow target."""
    known = Knowledge(
        DraftTimes({1: 0.01, 32: 0.02}),
        TargetTimes({(1, 1): 0.04, (1, 64): 0.05}),
        LinkTimes(),
        read_acceptance(),
    )
    for _ in range(5):
        known.link.observe(link, 0.0, 100)
    return known


def adaptive(draft: Decoder, known: Knowledge, bets: bool = True) -> AdaptiveDrafter:
    model = EagerModel(draft, rows=1, capacity=SEQUENCE_LENGTH + MOST_RANKED, max_nodes=64)
    ticks = iter(range(10**9))
    return AdaptiveDrafter(model, Pilot(known, bets=bets, clock=lambda: next(ticks) * 1e-3))


def navigator(known: Knowledge, allowed: Sequence[str] = (DISTRIBUTED,)) -> Navigator:
    return Navigator(known, Wish(), None, frozenset(allowed), most_nodes=63)


def made(
    verifier: LocalVerifier,
    drafter: AdaptiveDrafter,
    course: Navigator,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
) -> list[int]:
    with closing(verifier), closing(drafter):
        steps = decode_adaptive(prompt, params, drafter, verifier, course, tokens, frozenset())
        return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize(
    "params", SAMPLINGS, ids=lambda params: f"T{params.temperature}-p{params.top_p}-k{params.top_k}"
)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("bets", [True, False], ids=["bets", "no bets"])
def test_output_equals_the_targets_own_seeded_decoding(
    target: Decoder, served: Engine, ties: NearTies, params: SamplingParams, draft: str, bets: bool
) -> None:
    prompt, drafters = prompt_of(30), list[AdaptiveDrafter]()
    reference = alone(LocalVerifier(served), prompt, params, 80)

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        known = knowledge()
        drafters.append(adaptive(DRAFTS[draft], known, bets))
        return made(LateVerifier(served), drafters[-1], navigator(known), prompt, params, tokens)

    assert_same_text(target, prompt, params, reference, produce, ties)
    assert (drafters[0].drafted.prepared > 0) == bets
    assert bets or drafters[0].drafted.used == 0


class Wavering(Navigator):
    """Takes the other architecture at every decision."""

    def decide(self) -> Course:
        course = super().decide()
        present = TARGET_ONLY if self._course_before == DISTRIBUTED else DISTRIBUTED
        self._course_before = present
        forecast = next(one for one in course.alternatives if one.architecture == present)
        self._course = course._replace(forecast=forecast)
        return self._course

    _course_before = DISTRIBUTED


@pytest.mark.parametrize("params", SAMPLINGS[:3], ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("draft", DRAFTS)
def test_a_text_whose_architecture_changes_in_between_is_the_targets_own(
    target: Decoder, served: Engine, ties: NearTies, params: SamplingParams, draft: str
) -> None:
    prompt, drafters = prompt_of(30), list[AdaptiveDrafter]()
    reference = alone(LocalVerifier(served), prompt, params, 120)

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        known = knowledge(link=0.001)
        drafters.append(adaptive(DRAFTS[draft], known))
        course = Wavering(known, Wish(), None, frozenset([DISTRIBUTED, TARGET_ONLY]), most_nodes=63)
        return made(LateVerifier(served), drafters[-1], course, prompt, params, tokens)

    assert_same_text(target, prompt, params, reference, produce, ties)
    assert 0 < drafters[0].drafted.rounds < 100


def test_the_draft_learns_from_tokens_that_the_target_made_alone(served: Engine) -> None:
    """What it would have guessed is scored against them, so that a draft which became good again is noticed."""
    prompt, known = prompt_of(30), knowledge()
    text = alone(LocalVerifier(served), prompt, SamplingParams(), 60)
    before = known.acceptance.mean_edges(1)[0]
    drafter = adaptive(decoder(1), known)
    drafter.open(prompt, SamplingParams())
    for start in range(0, 60, 8):
        drafter.follow(text[start : start + 8])
    assert known.acceptance.mean_edges(1)[0] > max(before, 0.9)
    assert drafter.draft(text[-1], Budget(8, 8)).tokens[0] == text[-1]


def test_prepared_trees_are_used(served: Engine) -> None:
    """A draft that is always right finds the beginning of nearly every next tree."""
    known = knowledge()
    drafter = adaptive(decoder(1), known)
    made(LateVerifier(served), drafter, navigator(known), prompt_of(30), SamplingParams(), 100)
    assert drafter.drafted.hits >= drafter.drafted.rounds - 2
    assert drafter.drafted.used > 0
