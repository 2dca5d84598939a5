"""A proposer whose model, a head, reads features of the target that come over a link."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from inference.backends import Model
from inference.backends.led_sequence import LedSequence
from inference.backends.received_features import ReceivedFeatures
from inference.cost.objective import Effort
from inference.drafters.copy_proposer import Passed
from inference.drafters.copy_source import CopySource
from inference.drafters.model_proposer import ModelProposer
from inference.drafters.prospects import Prospect
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.sampling import SamplingParams

JUDGED_AFTER = 64
"""Committed tokens after which features are first held against their bytes."""


class LedProposer(ModelProposer):
    """A ModelProposer on features that a session puts into `features`.

    It is silent until those of the prompt's end are there, while its source copies. When they cost
    more than the named tokens save, it asks for no more, and is silent from then on.
    """

    def __init__(
        self,
        model: Model,
        row: int,
        knowledge: Knowledge,
        prices: Prices,
        *,
        features: ReceivedFeatures,
        source: CopySource | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.features, self._led, self._right = features, 0, 0
        super().__init__(
            model,
            row,
            knowledge,
            prices,
            source=source,
            clock=clock,
            sequence=partial(LedSequence, features=features),
        )

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        super().open(prompt, params, end)
        self._sequence.advance([], self._prompt, [])  # computed once features lead them

    def choose(self, now: float, most_seconds: float = float("inf")) -> Sequence[Prospect]:
        if self.features.ready:
            return super().choose(now, most_seconds)
        self._chosen = []
        return self._chosen

    def _advance(self, tokens: Sequence[int]) -> list[Passed]:
        passed = super()._advance(tokens)
        if self.features.ready:
            taken = [*(one.root for one in passed[1:]), self._list.root]
            self._right += sum(node.number is not None and not node.is_copy for node in taken)
            self._led += len(taken)
            if self._led >= JUDGED_AFTER:
                self._judge()
        return passed

    def _judge(self) -> None:
        """Hold what the features of these tokens took against the forwards that they saved."""
        form, count = self.features.form, self._led
        cost = Effort(self.features.seconds * count, bytes_down=form.position_bytes * count)
        if not self.prices.repays(cost, self._right * self._times.forward):
            self.features.give_up()
        self._led = self._right = 0
