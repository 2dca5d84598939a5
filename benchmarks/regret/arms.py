"""The arms of the study: what Outrider decides, every synchronous setting, and what others do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from benchmarks.regret.betting import BettingProposer, Rule
from benchmarks.regret.dial import Text
from benchmarks.regret.rival_chains import Outcomes, StoppingRule
from benchmarks.regret.rival_trees import (
    BudgetTree,
    ObjectiveTree,
    Transfer,
    TransferByNode,
    TransferByRound,
)
from benchmarks.regret.stage import Stage
from inference.decode import TICK_SECONDS, Loop
from inference.draft_thread import inline
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.drafters.round_proposer import RoundProposer
from inference.drafters.tree_policies import BestFirst, Chain, Policy
from inference.order import Decode, Pace
from inference.planner.prices import Prices
from inference.proposer import Proposer

CHAINS = (1, 2, 4, 8, 16)
TREES = ((8, 3), (8, 5), (16, 4), (16, 7), (32, 5), (32, 9), (64, 6), (64, 12))
"""Nodes and depth: what is sent, and how many calls of the draft that takes at most."""

OUTCOMES = tuple((length, fan) for length in (2, 3, 5, 8) for fan in (1, 2, 4))
"""Settings of Saguaro: length of a chain, and tokens where the target may leave it."""

Propose = Callable[[Stage], Proposer]


@dataclass(frozen=True)
class Player:
    """An arm in one cell, with what it has learnt in the texts before. play: the tokens of a text,
    as they come.
    """

    play: Callable[[Text], Iterator[Sequence[int]]]


class Arm(NamedTuple):
    """crosses: whether its draft is across the link.  blind: whether what it does has nothing to do
    with time, so that a longer round trip makes every round so much longer and changes nothing
    else.
    """

    name: str
    group: str
    begin: Callable[[Stage], Player]
    crosses: bool = True
    blind: bool = False


def _playing(stage: Stage, proposers: Sequence[Proposer], pace: Pace, beside: bool) -> Player:
    drafter = stage.drafter(proposers)

    def play(text: Text) -> Iterator[Sequence[int]]:
        end = len(text.prompt) + len(text.tokens)
        order, session = Decode(end, pace=pace, beside=beside), stage.session
        with closing(session):
            loop = Loop(text.prompt, text.params, session, order, drafter, stage.now)
            with closing(loop):
                yield from (step.tokens for step in loop.steps() if step.tokens)
            loop.drafting.settle()  # arms share the draft's row

    return Player(play)


def going_on(*proposes: Propose, beside: bool = False) -> Callable[[Stage], Player]:
    """The target never waits for these."""
    return lambda stage: _playing(
        stage, [propose(stage) for propose in proposes], Pace.GO_ON, beside
    )


def in_rounds(propose: Propose) -> Callable[[Stage], Player]:
    """The target waits for a whole tree."""
    return lambda stage: _playing(stage, [propose(stage)], Pace.WAIT, False)


def growing(stage: Stage) -> Proposer:
    """The draft here, as --draft model has it."""
    prices = Prices(battery=True)
    return Draft(stage.draft).proposer(0, stage.knowledge(), prices, clock=stage.now)


def hybrid(stage: Stage) -> Proposer:
    """A draft here that copies, too: the default of --role draft."""
    prices = Prices(battery=True)
    return Draft(stage.draft).proposer(
        0, stage.knowledge(), prices, clock=stage.now, source=CopySource()
    )


def suffix(stage: Stage) -> Proposer:
    """Copied text alone, as --draft none has it."""
    return GrowingProposer(stage.knowledge(), Prices(battery=True), CopySource())


def _rounds(policy: Policy, stage: Stage) -> Proposer:
    return RoundProposer(stage.draft, policy, room=stage.most_nodes)


ALONE = Arm("target-only", "target-only", going_on())
GROWING = Arm("growing", "growing", going_on(growing))
ANYWHERE = Arm("anywhere", "growing", going_on(growing, beside=True))
HYBRID = Arm("hybrid", "growing", going_on(hybrid))
SUFFIX = Arm("suffix", "growing", going_on(suffix))
FUSED = Arm("fused", "fused", going_on(beside=True), crosses=False)
"""What is studied: without a draft, with one here, with another one beside the target, too, and
with that one only. Hybrid: the draft here copies, too. Suffix: copies alone.
"""

SYNCHRONOUS = (
    *(
        Arm(f"chain {length}", "chain", in_rounds(partial(_rounds, Chain(length))), blind=True)
        for length in CHAINS
    ),
    *(
        Arm(
            f"tree {nodes}x{depth}",
            "tree",
            in_rounds(partial(_rounds, BestFirst(nodes, depth))),
            blind=True,
        )
        for nodes, depth in TREES
    ),
)


def betting(rule: Callable[[Stage], Rule]) -> Callable[[Stage], Player]:
    """The target waits for a tree, and the draft goes on meanwhile."""

    def begin(stage: Stage) -> Player:
        proposer = BettingProposer(stage.draft, rule(stage), stage.most_nodes)

        def play(text: Text) -> Iterator[Sequence[int]]:
            order = Decode(len(text.prompt) + len(text.tokens), pace=Pace.WAIT)
            with closing(stage.session) as session:
                loop = Loop(text.prompt, text.params, session, order, inline([proposer]), stage.now)
                while not loop.ended:
                    step = loop.step(0.0 if proposer.drafts else TICK_SECONDS)
                    if step.tokens:
                        yield step.tokens

        return Player(play)

    return begin


def _objective(transfer: Callable[[], Transfer], stage: Stage) -> Rule:
    known = stage.knowledge()
    return ObjectiveTree(known.draft, known.target, transfer())


def _stopping(stage: Stage) -> Rule:
    known = stage.knowledge()
    return StoppingRule(known.draft, known.target, known.round_trip)


def _outcomes(length: int, fan: int, stage: Stage) -> Rule:
    return Outcomes(length, fan)


RIVALS = (
    Arm("one bet (SpecEdge)", "one bet", betting(lambda stage: BudgetTree())),
    Arm("AutoDraft", "AutoDraft", betting(partial(_objective, TransferByNode))),
    Arm("AutoDraft, round trip known", "AutoDraft", betting(partial(_objective, TransferByRound))),
    *(
        Arm(f"Saguaro {length}x{fan}", "Saguaro", betting(partial(_outcomes, length, fan)))
        for length, fan in OUTCOMES
    ),
    Arm("UCB-SpecStop", "UCB-SpecStop", betting(_stopping)),
)

OURS = (GROWING, HYBRID, SUFFIX, ANYWHERE, FUSED)
ARMS = (ALONE, *OURS, *SYNCHRONOUS, *RIVALS)
