"""Which architecture the next tokens are made by, and at what prices: decided from forecasts that measurements have set right. Pure.

The target alone, with the draft beside it, or with the draft here: whichever is best for what the user wishes, changed only when
another one is clearly better twice in a row. The session stays where it is; nothing is prefilled again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from inference.forecast import DISTRIBUTED, TARGET_ONLY, Forecast, Situation, forecasts
from inference.objective import SPEED, Effort, Tariff, Terms, Wish, blend, price_words
from inference.pilot import Knowledge

CLEARLY, IN_A_ROW = 0.92, 2
"""Another architecture is taken when its price is below this share of the present one's, so many decisions in a row."""

FORGIVING = 0.95
"""What is left, at each later decision, of how far the forecast of an architecture was off when it last ran: it is tried again some time."""

WEIGHTS = tuple(step / 20 for step in range(21))
"""Of cost against speed, from which a limit chooses."""

BELIEVED = 24.0
"""Tokens that what was known of a forecast before counts as, beside what was measured."""

LEAST_CORRECTION, MOST_CORRECTION = 0.25, 4.0


class Course(NamedTuple):
    """A decision. alternatives: the best setting of each architecture, corrected, `forecast` among them.  notice: a limit that cannot be kept,
    once the target's times are known."""

    forecast: Forecast
    tariff: Tariff
    alternatives: tuple[Forecast, ...]
    notice: str | None

    @property
    def architecture(self) -> str:
        return self.forecast.architecture


class _Worth(NamedTuple):
    """Of a forecast to this user; the smaller the better. breaks: the user's limit.  price: of a token, in whatever is left to choose by."""

    breaks: bool
    price: float


@dataclass
class Navigator:
    """Decides for one session. allowed: architectures that may be taken, DISTRIBUTED among them.  terms: None where nothing has a price.
    tell: hears of every decision.  greedy: how the text is sampled.
    """

    known: Knowledge
    wish: Wish
    terms: Terms | None
    allowed: frozenset[str]
    most_nodes: int
    bets: bool = True
    tell: Callable[[Course], None] | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        self._cost = (
            SPEED
            if self.wish.speed_alone or self.terms is None
            else self.terms.tariff(self.wish.objective)
        )
        self._forecast: Forecast | None = None  # of what is running, uncorrected
        self._better = 0  # decisions in a row for another architecture
        self._course: Course | None = None

    @property
    def course(self) -> Course:
        """The last decision; the first one where there was none."""
        return self._course or self.decide()

    @property
    def settled(self) -> bool:
        """The first decision is the last: there is nothing to choose, and nobody to be told."""
        return self.allowed == {DISTRIBUTED} and self.wish.speed_alone and self.tell is None

    def measured(self, tokens: float, effort: Effort) -> None:
        """What lately made tokens took, under the present course: few of them say little."""
        if self._forecast is not None and tokens > 0:
            before = self.known.corrections.get(self._forecast.architecture, 1.0)
            off = (effort.wall / self._forecast.effort.wall + BELIEVED * before) / (
                tokens + BELIEVED
            )
            self.known.corrections[self._forecast.architecture] = min(
                max(off, LEAST_CORRECTION), MOST_CORRECTION
            )

    def decide(self) -> Course:
        """The course from here on."""
        plain = [
            one
            for one in forecasts(self._situation)
            if one.architecture in self.allowed | {TARGET_ONLY}
        ]
        corrected = [self._corrected(one) for one in plain]
        reference = min(
            (one.effort for one in corrected if one.architecture in self._possible), key=SPEED.of
        )
        best = {
            name: min(group, key=partial(self._worth, reference=reference))
            for name, group in _grouped(corrected).items()
        }
        taken = self._taken(
            {
                name: self._worth(one, reference)
                for name, one in best.items()
                if name in self._possible
            }
        )
        self._forecast = plain[corrected.index(best[taken])]
        for name in self.known.corrections.keys() - {taken}:
            self.known.corrections[name] **= FORGIVING
        tariff = self._tariff([one for one in corrected if one.architecture == taken], reference)
        self._course = Course(best[taken], tariff, tuple(best.values()), self._notice(best[taken]))
        if self.tell is not None:
            self.tell(self._course)
        return self._course

    @property
    def _situation(self) -> Situation:
        return self.known.situation(self.most_nodes, self.bets, self.greedy)

    @property
    def _possible(self) -> frozenset[str]:
        """What may be taken now: nothing compares with a target that has not told its times before they are seen."""
        return self.allowed if self.known.target.known else frozenset({DISTRIBUTED})

    def _worth(self, one: Forecast, reference: Effort) -> _Worth:
        """What is as small as can be: without a limit the blend of cost and time, with one what it leaves open among those that keep it."""
        wish, cost, wall = self.wish, self._cost.of(one.effort), one.effort.wall
        if wish.min_tps is not None:
            slow = one.tokens_per_second < wish.min_tps
            return _Worth(slow, wall if slow else cost)
        if wish.max_per_token is not None:
            dear = cost > wish.max_per_token
            return _Worth(dear, cost if dear else wall)
        return _Worth(False, blend(self._cost, wish.weight, reference).of(one.effort))

    def _taken(self, possible: dict[str, _Worth]) -> str:
        """The architecture: the present one, unless another is clearly better again and again, or keeps the user's limit where it does not."""
        best = min(possible, key=possible.__getitem__)
        if self._forecast is None:
            return best
        present = self._forecast.architecture
        kept, left = possible[best], possible[present]
        self._better = (
            self._better + 1
            if kept.breaks == left.breaks and kept.price < CLEARLY * left.price
            else 0
        )
        if kept.breaks == left.breaks and self._better < IN_A_ROW:
            return present
        self._better = 0
        return best

    def _tariff(self, settings: Sequence[Forecast], reference: Effort) -> Tariff:
        """What the rounds of an architecture are priced by: with a limit, the blend that just keeps it."""
        wish = self.wish
        if wish.min_tps is None and wish.max_per_token is None:
            return blend(self._cost, wish.weight, reference)
        blends = [blend(self._cost, weight, reference) for weight in WEIGHTS]
        dearest_first = blends if wish.min_tps is None else blends[::-1]
        for tariff in dearest_first:
            if not self._worth(
                min(settings, key=lambda one: tariff.of(one.effort)), reference
            ).breaks:
                return tariff
        return dearest_first[-1]

    def _notice(self, taken: Forecast) -> str | None:
        """What to say where the user's limit cannot be kept; nothing before the target's times are known."""
        wish = self.wish
        if not self.known.target.known or not self._worth(taken, taken.effort).breaks:
            return None
        if wish.min_tps is not None:
            return f"{wish.min_tps:g} tokens/s cannot be had: the most is {taken.tokens_per_second:.1f} ({taken.words})"
        wanted, least = (
            price_words(wish.objective, price)
            for price in (wish.max_per_token or 0.0, self._cost.of(taken.effort))
        )
        return f"{wanted} cannot be had: the least is {least} ({taken.words})"

    def _corrected(self, one: Forecast) -> Forecast:
        wall = one.effort.wall * self.known.corrections.get(one.architecture, 1.0)
        return one._replace(effort=one.effort._replace(wall=wall))


def _grouped(possible: Sequence[Forecast]) -> dict[str, list[Forecast]]:
    groups: dict[str, list[Forecast]] = {}
    for one in possible:
        groups.setdefault(one.architecture, []).append(one)
    return groups
