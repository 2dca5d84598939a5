"""A loaded draft: all that pools, clients and targets need to know of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from inference.backends import Masks, Model
from inference.backends.sequence import MakeSequence, TargetText, own_sequence
from inference.draft_tuning import TUNING
from inference.drafters.draft_row import DraftRow
from inference.drafters.growing_proposer import GrowingProposer
from inference.drafters.text_source import TextSource
from inference.errors import InvalidRequest, MissingExtra
from inference.grammar import Grammars
from inference.planner.acceptance import Knowledge
from inference.planner.prices import Prices
from inference.proposer import MODEL
from inference.sampling import SamplingParams
from inference.token_rule import TokenRule

log = logging.getLogger(__name__)


class Draft(NamedTuple):
    """A loaded draft, and how it is used.

    model: ranks nodes; None for a draft that ranks none
    masks: what stands for tokens that are not known yet; None for a draft that knows none
    sequence: makes the sequence of a text on a row
    source: makes what names children without a model; None where that is copied text, if anything
    grammars: of its tokenizer; None for a draft that ranks without regard to rules
    """

    model: Model | None
    masks: Masks | None = None
    sequence: MakeSequence = own_sequence
    source: Callable[[], TextSource] | None = None
    grammars: Grammars | None = None

    def rule(self, prompt: Sequence[int], params: SamplingParams) -> TokenRule | None:
        """Make the rule of a text; None where nothing adjusts its logits.

        Where it cannot be made the draft goes without: that costs speed and never changes the text.
        """
        if self.grammars is None or not params.adjusts:
            return None
        try:
            return self.grammars.rule(prompt, params)
        except (InvalidRequest, MissingExtra) as error:
            log.warning("a text is drafted without its rule: %s", error)
            return None

    def proposer(
        self,
        row: int,
        knowledge: Knowledge,
        prices: Prices,
        *,
        source: TextSource | None = None,
        kind: int = MODEL,
        room: int = TUNING.room,
        clock: Callable[[], float] = time.perf_counter,
        beside: TargetText | None = None,
    ) -> GrowingProposer:
        """Make the proposer of a row. Arguments are those of GrowingProposer and DraftRow.

        source: text that is copied, unless the draft has a source of its own
        beside: where the target has the text, for a draft that reads its target
        """
        own = source if self.source is None else self.source()
        if self.model is None:
            return GrowingProposer(knowledge, prices, own, make_rule=self.rule)
        begin = partial(self.sequence, self.model, row, beside)
        ranks = DraftRow(
            self.model, knowledge.draft, begin, masks=self.masks, room=room, clock=clock
        )
        return GrowingProposer(knowledge, prices, own, ranks, kind=kind, make_rule=self.rule)
