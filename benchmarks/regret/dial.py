"""How well a draft agrees with the target: settings of what it knows, of its noise and its misses,
and what they come to on a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.regret.pair import MissingModel, PrefixModel
from benchmarks.regret.prefixes import Prefixes
from inference.sampling import SamplingParams

GUESSES = 8
"""A token misses when it is none of so many guesses; as wide as every arm's trees branch
(BestFirst.width).
"""


class Level(NamedTuple):
    """A draft by its noise: the standard deviation, in logits.

    misses: share of prefixes after which the target's token is none of its guesses, whatever the
    noise.  knows: share of the target's own logits in what it says.
    """

    name: str
    noise: float
    misses: float = 0.0
    knows: float = 1.0

    def draft(self, prefixes: Prefixes) -> PrefixModel:
        """With a row."""
        if self.misses:
            return MissingModel(prefixes, self.noise, self.misses)
        return PrefixModel(prefixes, self.noise, knows=self.knows)


MISSES = Level("misses", 1.0, misses=0.036)
"""At 4 to 5 % of the texts' tokens it misses, as real drafts do: the noise's own misses (at
temperature 0.8 one in a hundred) are among them.
"""

LEVELS = (Level("weak", 1.7), Level("mid", 1.0), Level("close", 0.4), MISSES)

USELESS = Level("useless", 5.0, knows=0.0)
"""As sure of itself as the target, and never right; no level of the grid."""

NAMED = {level.name: level for level in (*LEVELS, USELESS)}


class Text(NamedTuple):
    """A prompt, its sampling, and what the target says after it."""

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """Means over the tokens of some texts.

    first: the target's token is the draft's first guess.  covered: it is one of GUESSES.  distance:
    total variation between what the two would say at temperature 0.7; None where the target's
    logits cannot be had.
    """

    first: float
    covered: float
    distance: float | None = None

    @property
    def miss(self) -> float:
        """Share of tokens that no tree of this draft could have held."""
        return 1 - self.covered


def measure(prefixes: Prefixes, draft: PrefixModel, texts: Sequence[Text]) -> Agreement:
    """How well the draft foresees what the target said."""
    first = covered = total = 0
    distances = 0.0
    for text in texts:
        before = [prefixes.after(text.prompt)]
        for token in text.tokens[:-1]:
            before.append(prefixes.child(before[-1], token))
        ranked = draft.guesses(before, text.params, GUESSES)
        places = ranked.ids == np.array(text.tokens)[:, None]
        first, covered, total = (
            first + int(places[:, 0].sum()),
            covered + int(places.any(1).sum()),
            total + len(before),
        )
        theirs, ours = (
            (logits / 0.7).softmax(-1)
            for logits in (prefixes.logits(before), draft.logits_under(before, text.params))
        )
        distances += float(0.5 * (theirs - ours).abs().sum())
    return Agreement(first / total, covered / total, distances / total)
