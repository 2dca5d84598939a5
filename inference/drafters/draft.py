"""A loaded draft, as pools, clients and targets use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from inference.backends import Masks, Model
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
    masks: the model's mask tokens; None for a model without
    sequence: makes the sequence of a text on a row
    grammars: of its tokenizer; None for a draft that ignores rules
    """

    model: Model | None
    masks: Masks | None = None
    sequence: MakeSequence = own_sequence
    grammars: Grammars | None = None

    @property
    def make_rule(self) -> MakeRule:
        """Builds the rule of a text."""
        return no_rule if self.grammars is None else self.grammars.rule

    def proposer(
        self,
        row: int,
        knowledge: PairStats,
        prices: Prices,
        *,
        copies: bool = False,
        kind: int = MODEL,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
        beside: TargetText | None = None,
        make_rule: MakeRule | None = None,
    ) -> GrowingProposer:
        """Make the proposer of a row. Arguments are those of GrowingProposer and DraftRow.

        beside: the target's row of the text, for a draft that reads its target
        make_rule: builds the rules of texts, in place of the draft's own grammars
        """
        make_rule = make_rule or self.make_rule
        if self.model is None:
            return GrowingProposer(knowledge, prices, copies=copies, make_rule=make_rule)
        begin = partial(self.sequence, self.model, row, beside)
        ranks = DraftRow(
            self.model, knowledge.draft, begin, masks=self.masks, room=room, clock=clock
        )
        return GrowingProposer(
            knowledge, prices, ranks, copies=copies, kind=kind, make_rule=make_rule
        )
