"""The arms of the study: everything that a fixed setting could be, what others do, and what Outrider decides by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from benchmarks.regret.betting import BettingDrafter, Rule
from benchmarks.regret.dial import Text
from benchmarks.regret.rivals import (
    BudgetTree,
    ObjectiveTree,
    Transfer,
    TransferByNode,
    TransferByRound,
)
from benchmarks.regret.stage import Stage
from inference.acceptance import read_acceptance
from inference.adaptive import decode_adaptive
from inference.decode import Drafter, Verifier, decode
from inference.drafters.adaptive import AdaptiveDrafter
from inference.drafters.model import ModelDrafter
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY, forecasts
from inference.navigator import Navigator
from inference.objective import Wish
from inference.pilot import Drafted, Knowledge, Pilot
from inference.policy import BestFirst, Chain, Policy

CHAINS = (1, 2, 4, 8, 16)
TREES = ((8, 3), (8, 5), (16, 4), (16, 7), (32, 5), (32, 9), (64, 6), (64, 12))
"""Nodes and depth: what is sent, and how many calls of the draft that takes at most."""


class Hits(Protocol):
    """Rounds so far, and those whose outcome was prepared for."""

    @property
    def rounds(self) -> int: ...

    @property
    def hits(self) -> int: ...


class Foresight(NamedTuple):
    """Seconds a token that the planner's formula predicts for drafting here, by what was measured: without bets and with them."""

    waiting: float
    betting: float


@dataclass(frozen=True)
class Player:
    """An arm in one cell, with what it has learnt in the texts before. play: the tokens of each round of a text.  foresee: after them, for
    greedy texts or others, if the arm has a planner."""

    play: Callable[[Text], Iterator[Sequence[int]]]
    bets: Hits = field(default_factory=Drafted)
    foresee: Callable[[bool], Foresight | None] = lambda greedy: None


class Arm(NamedTuple):
    """crosses: whether its rounds go over the link.  blind: whether what it does has nothing to do with time, so that a longer round trip
    makes every round so much longer and changes nothing else.  ours: what is studied; the others are what it is compared with.
    """

    name: str
    group: str
    begin: Callable[[Stage], Player]
    crosses: bool = True
    blind: bool = False
    ours: bool = False


def _decoding(drafter: Drafter, verifier: Verifier, text: Text) -> Iterator[Sequence[int]]:
    with closing(verifier), closing(drafter):
        for step in decode(text.prompt, text.params, drafter, verifier, len(text.tokens)):
            yield step.tokens


def _across(policy: Policy) -> Callable[[Stage], Player]:
    return lambda stage: Player(
        lambda text: _decoding(ModelDrafter(stage.draft, policy), stage.verifier, text)
    )


def _there(beside: Policy | None) -> Callable[[Stage], Player]:
    """The target by itself, or with the draft beside it."""

    def begin(stage: Stage) -> Player:
        def play(text: Text) -> Iterator[Sequence[int]]:
            with closing(stage.verifier) as verifier:
                verifier.open(text.prompt, text.params).result()
                for token in verifier.generate(
                    len(text.tokens), frozenset(), fused=beside is not None, policy=beside
                ):
                    yield [token]

        return Player(play)

    return begin


def _betting(rule: Callable[[Stage], Rule]) -> Callable[[Stage], Player]:
    def begin(stage: Stage) -> Player:
        drafter = BettingDrafter(stage.draft, rule(stage))
        return Player(lambda text: _decoding(drafter, stage.verifier, text), drafter.bets)

    return begin


def _objective(stage: Stage, transfer: Transfer) -> Rule:
    return ObjectiveTree(stage.draft_times, stage.target_times, transfer, stage.lost, stage.now)


def _adaptive(*allowed: str, bets: bool = True) -> Callable[[Stage], Player]:
    """Outrider as `--architecture auto` or `distributed` has it, with the shipped prior and the machine's own profile."""

    def begin(stage: Stage) -> Player:
        known = Knowledge(
            stage.draft_times, stage.target_times, stage.link_times(), read_acceptance()
        )
        known.call_there, known.room_there = stage.beside_times.seconds, stage.room_beside
        drafter = AdaptiveDrafter(stage.draft, Pilot(known, bets=bets, clock=stage.now))

        def foresee(greedy: bool) -> Foresight:
            drafted = [
                one
                for one in forecasts(known.situation(stage.most_nodes, True, greedy))
                if one.architecture == DISTRIBUTED
            ]
            return Foresight(
                min(one.effort.wall for one in drafted if not one.bets),
                min(one.effort.wall for one in drafted),
            )

        def play(text: Text) -> Iterator[Sequence[int]]:
            navigator = Navigator(
                known, Wish(), None, frozenset(allowed), most_nodes=stage.most_nodes, bets=bets
            )
            with closing(stage.verifier), closing(drafter):
                for step in decode_adaptive(
                    text.prompt,
                    text.params,
                    drafter,
                    stage.verifier,
                    navigator,
                    len(text.tokens),
                    frozenset(),
                ):
                    yield step.tokens

        return Player(play, drafter.drafted, foresee)

    return begin


ANYWHERE = Arm(
    "adaptive, anywhere", "adaptive", _adaptive(DISTRIBUTED, TARGET_ONLY, FUSED), ours=True
)
ADAPTIVE = Arm("adaptive", "adaptive", _adaptive(DISTRIBUTED, TARGET_ONLY), ours=True)
BETTING = Arm("adaptive, distributed", "adaptive", _adaptive(DISTRIBUTED), ours=True)
WAITING = Arm(
    "adaptive, distributed, no bets", "adaptive", _adaptive(DISTRIBUTED, bets=False), ours=True
)
"""What is studied: where the target has a draft beside it, where it has none, where the draft here is never left, and without bets."""

ALONE = Arm("target-only", "target-only", _there(None))

ARMS = (
    *(Arm(f"chain {length}", "chain", _across(Chain(length)), blind=True) for length in CHAINS),
    *(
        Arm(f"tree {nodes}x{depth}", "tree", _across(BestFirst(nodes, depth)), blind=True)
        for nodes, depth in TREES
    ),
    Arm("one bet (SpecEdge's policy)", "one bet", _betting(lambda stage: BudgetTree())),
    Arm(
        "AutoDraft's rule", "AutoDraft", _betting(lambda stage: _objective(stage, TransferByNode()))
    ),
    Arm(
        "AutoDraft's rule, round trip known",
        "AutoDraft",
        _betting(lambda stage: _objective(stage, TransferByRound())),
    ),
    ALONE,
    *(
        Arm(f"fused, chain {length}", "fused", _there(Chain(length)), crosses=False, blind=True)
        for length in CHAINS[:4]
    ),
    *(
        Arm(
            f"fused, tree {nodes}x{depth}",
            "fused",
            _there(BestFirst(nodes, depth)),
            crosses=False,
            blind=True,
        )
        for nodes, depth in TREES
    ),
    ANYWHERE,
    ADAPTIVE,
    BETTING,
    WAITING,
)
