"""A loaded draft, for pools, clients and targets."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from inference.backends import Model
from inference.backends.sequence import MakeSequence, TargetText, own_sequence
from inference.drafters.draft_row import DraftRow
from inference.drafters.draft_rule import MakeRule, no_rule
from inference.drafters.growing_proposer import GrowingProposer
from inference.loop.draft_tuning import TUNING
from inference.planner.acceptance import PairStats
from inference.planner.prices import Prices
from inference.proposer import MODEL
from inference.text.grammar import Grammars


class Draft(NamedTuple):
    """A loaded draft and its settings.

    model: ranks nodes; None for a draft without a model
    sequence: creates the sequence of a request on a row
    grammars: compiles grammars for the draft's tokenizer; None if the draft ignores rules
    """

    model: Model | None
    sequence: MakeSequence = own_sequence
    grammars: Grammars | None = None

    @property
    def make_rule(self) -> MakeRule:
        """A function that builds the rule of a request."""
        return no_rule if self.grammars is None else self.grammars.rule

    def proposer(
        self,
        row: int,
        stats: PairStats,
        prices: Prices,
        *,
        copies: bool = False,
        kind: int = MODEL,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
        beside: TargetText | None = None,
        make_rule: MakeRule | None = None,
    ) -> GrowingProposer:
        """Create the proposer of a row. Other arguments: see GrowingProposer and DraftRow.

        beside: the request's row at the target, for a draft that reads the target's features
        make_rule: builds the rules of requests, instead of the draft's own grammars
        """
        make_rule = make_rule or self.make_rule
        if self.model is None:
            return GrowingProposer(stats, prices, copies=copies, make_rule=make_rule)
        begin = partial(self.sequence, self.model, row, beside)
        ranks = DraftRow(self.model, stats.draft, begin, room=room, clock=clock)
        return GrowingProposer(stats, prices, ranks, copies=copies, kind=kind, make_rule=make_rule)
