"""Decides, round by round, how drafting goes on: how wide the next call of the draft is, when a tree is sent and how much of it.

Every decision has one form: do what brings tokens as long as they are worth more than it costs, where a token is worth what tokens
cost lately (their ratio of sums; Dinkelbach's method for ratios). Time is priced only while somebody waits for it, so that what is
drafted while a verdict is under way is free until the moment the verdict is expected.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.acceptance import AcceptanceModel
from inference.forecast import NODE_BYTES, ROUND_BYTES, VERDICT_BYTES, Situation
from inference.objective import SPEED, Effort, Tariff
from inference.stats import Traffic
from inference.times import DraftTimes, LinkTimes, TargetTimes

WIDTH = 8
"""Children that the draft names for each node."""

REMEMBERED_ROUNDS = 30.0
"""Rounds after which a round counts for 1/e in the price of a token."""

FORECAST_ROUNDS = 5.0
"""How many rounds the forecast counts in the price of a token before any were made."""

SILENT_ROUNDS = 12
"""Rounds without a call of the draft after which one is made all the same: what it costs, or how good it is, may have changed."""

LEAST_CHANCE, LEAST_ONWARD = 0.05, 2.0
"""Of a tree that is sent before the verdict of the last one: that this comes out as assumed, and tokens that it would bring."""


@dataclass
class Knowledge:
    """Everything that is measured, by whom it was measured. One of these outlives texts: what was learned in one serves the next."""

    draft: DraftTimes
    target: TargetTimes
    link: LinkTimes
    acceptance: AcceptanceModel
    queue: float = 0.0  # seconds that a round waits at the target, lately
    call_there: Callable[[int], float] | None = (
        None  # seconds of a call of the draft beside the target, by width
    )
    room_there: int = 0  # nodes that that draft may rank for a tree
    corrections: dict[str, float] = field(
        default_factory=dict
    )  # by architecture: how much longer a token took than was forecast

    def situation(self, most_nodes: int, bets: bool, greedy: bool) -> Situation:
        return Situation(
            path=self.acceptance.path(greedy),
            call=self.draft.seconds,
            verify=lambda nodes: self.target.seconds(1, nodes),
            exchange=self.link.seconds,
            queue=self.queue,
            call_there=self.call_there,
            room_there=self.room_there,
            most_nodes=most_nodes,
            bets=bets,
        )


@dataclass
class Drafted:
    """What drafting a text came to. calls: of the draft model while a verdict was awaited.  prepared: nodes ranked in them; used: of these,
    under the outcome that came.  hits: rounds whose outcome was prepared for, so that the next tree had a beginning.  seconds: of drafting
    that rounds waited for; seconds_ahead: of the rest.  expected: accepted nodes that were predicted.
    """

    rounds: int = 0
    hits: int = 0
    calls: int = 0
    prepared: int = 0
    used: int = 0
    seconds: float = 0.0
    seconds_ahead: float = 0.0
    expected: float = 0.0


class _Arrival(NamedTuple):
    """When a verdict is expected, and whether its tree was sent ahead of another verdict."""

    at: float
    ahead: bool


@dataclass
class Pilot:
    """The decisions of one session. tariff: what time and bytes cost, in the objective's unit.  bets: whether anything is drafted while a
    verdict is awaited; onward: whether it may be sent before.
    """

    known: Knowledge
    tariff: Tariff = SPEED
    bets: bool = True
    onward: bool = True
    clock: Callable[[], float] = time.perf_counter
    effort: Effort = field(
        default_factory=Effort
    )  # of lately made tokens, those of the forecast included
    tokens: float = 0.0
    _round_began: float = 0.0
    _arrivals: deque[_Arrival] = field(
        default_factory=deque
    )  # when each verdict under way is expected
    _sent_at: float = 0.0  # when the last tree was sent
    _drafting: float = 0.0  # seconds of drafting in this round
    _silent: int = 0  # rounds since the draft was last called
    _before: Traffic = field(default_factory=Traffic)

    def begin(self, traffic: Traffic) -> None:
        """A text begins, or goes on after something else."""
        self._before, self._round_began, self._drafting = traffic.copy(), self.clock(), 0.0
        self._arrivals.clear()

    def expect(self, tokens: float, effort: Effort) -> None:
        """The forecast of a round, before any was made."""
        if not self.tokens:
            self.tokens, self.effort = FORECAST_ROUNDS * tokens, effort.times(FORECAST_ROUNDS)

    @property
    def token_price(self) -> float:
        """What a token costs lately, in the objective's unit."""
        return self.tariff.of(self.effort) / self.tokens if self.tokens else 0.0

    def width(self, values: Sequence[float], least: float) -> int:
        """How many of these nodes the next call ranks, 0 for no call: what brings most, and while a verdict is under way, when time is free
        and ends, what brings most a second.

        values: of nodes that were not ranked, most valuable first.  least: value that a child must have to be of use.
        """
        worth, now = (
            (self.token_price * np.cumsum(self._gains(np.asarray(values), least))).tolist(),
            self.clock(),
        )
        calls = [(count, self.known.draft.seconds(count)) for count in _widths(len(values))]
        nets = [
            (worth[count - 1] - self._call_cost(seconds, now), count, seconds)
            for count, seconds in calls
        ]
        paying = [one for one in nets if one[0] > 0]
        if not paying:
            return int(
                self._silent >= SILENT_ROUNDS
                and self._drafting == 0
                and not self._arrivals
                and len(values) > 0
            )
        if not self._arrivals:
            return max(paying)[1]
        return max(paying, key=lambda one: worth[one[1] - 1] / max(one[2], 1e-9))[1]

    def size(self, values: Sequence[float]) -> int:
        """How many of these nodes are sent, most valuable first."""
        worth = self.token_price * np.concatenate([[0.0], np.cumsum(values)])
        return int(np.argmax(worth - self._round_costs(range(len(values) + 1))))

    def least_value(self, most: int) -> float:
        """Of a node that is worth sending, on average over trees of up to `most` nodes."""
        none, all_ = self._round_costs([0, most]).tolist()
        return (
            min((all_ - none) / max(most, 1) / self.token_price, 1.0)
            if self.token_price > 0
            else 0.0
        )

    def called(self, width: int, seconds: float) -> None:
        """The draft was called."""
        self._silent = 0
        self.known.draft.observe(width, seconds)
        self._drafting += seconds

    def sent(self, nodes: int) -> None:
        """A tree of so many nodes, the root included, is on its way."""
        verify, self._sent_at = self.known.target.seconds(1, nodes), self.clock()
        alone = self._sent_at + self._exchange(nodes - 1) + self.known.queue + verify
        ahead = bool(self._arrivals)
        self._arrivals.append(
            _Arrival(max(alone, self._arrivals[-1].at + verify) if ahead else alone, ahead)
        )

    def sends_onward(self, chance: float, tokens: float) -> bool:
        """Whether a tree is sent before the verdict of the last one is there, which makes it the right one with this chance, and is then
        expected to bring so many tokens: if much waiting is saved, and the target is done with the last one by then."""
        now = self.clock()
        saved = chance * (self._arrivals[-1].at - now)
        paced = now - self._sent_at >= self.known.target.seconds(1, 1) + self.known.queue
        return (
            self.onward
            and paced
            and chance >= LEAST_CHANCE
            and tokens >= LEAST_ONWARD
            and saved > self.known.draft.seconds(1)
        )

    def arrived(self, traffic: Traffic, nodes: int, tokens: int, goes_on: bool) -> None:
        """The first verdict under way has come, and brought so many tokens. goes_on: trees sent ahead of it are still waited for."""
        before, arrival = self._before, self._arrivals.popleft()
        away, queue, model = (
            getattr(traffic, name) - getattr(before, name)
            for name in ("away_seconds", "queue_seconds", "model_seconds")
        )
        up, down = traffic.bytes_up - before.bytes_up, traffic.bytes_down - before.bytes_down
        if traffic.reopenings == before.reopenings and traffic.resumes == before.resumes:
            self.known.target.observe(1, nodes, model)
            self.known.queue += 0.2 * (queue - self.known.queue)
            if not arrival.ahead:  # others wait for the ones before them, too
                self.known.link.observe(away, queue + model, up + down)
        self._silent += 1
        kept = 1 - 1 / REMEMBERED_ROUNDS
        self.effort = self.effort.times(kept).plus(
            Effort(self.clock() - self._round_began, self._drafting, up, down)
        )
        self.tokens = self.tokens * kept + tokens
        self._before, self._round_began, self._drafting = traffic.copy(), self.clock(), 0.0
        if not goes_on:
            self._arrivals.clear()

    def _gains(
        self, values: NDArray[np.float64], least: float
    ) -> NDArray[np.float64]:  # [n] -> [n]
        """Tokens that ranking each of these nodes is expected to add to a tree that has room for children of `least` value and above."""
        children = values[:, None] * self.known.acceptance.mean_edges(WIDTH)
        return np.asarray(np.maximum(children - least, 0.0).sum(axis=-1))

    def _call_cost(self, seconds: float, now: float) -> float:
        """Of a call of the draft that takes so long from now on."""
        waited = (
            max(0.0, now + seconds - max(self._arrivals[0].at, now)) if self._arrivals else seconds
        )
        return self.tariff.of(Effort(waited, seconds, 0.0, 0.0))

    def _round_costs(self, sizes: Sequence[int]) -> NDArray[np.float64]:  # [n]
        """Of sending so many nodes below the root and waiting for the verdict: a line in the nodes, and the target's forwards."""
        alone, one = self._exchange(0), self._exchange(1)
        fixed = self.tariff.of(Effort(alone, 0.0, ROUND_BYTES, VERDICT_BYTES))
        each = self.tariff.of(Effort(one - alone, 0.0, NODE_BYTES, 0.0))
        forwards = np.array([self.known.target.seconds(1, 1 + nodes) for nodes in sizes])
        return np.asarray(fixed + each * np.array(sizes) + self.tariff.wall * forwards)

    def _exchange(self, nodes: int) -> float:
        return self.known.link.seconds(int(ROUND_BYTES + NODE_BYTES * nodes + VERDICT_BYTES))


def _widths(most: int) -> list[int]:
    """Those that are looked at: few shapes of calls, since some devices compile each."""
    return (
        [*(1 << power for power in range(most.bit_length()) if 1 << power < most), most]
        if most
        else []
    )
