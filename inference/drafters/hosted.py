"""A draft beside its target that adapts by itself: trees as deep as they pay, by what this host has measured.

No link lies between the two, and nothing is under way while it drafts: it is the adaptive drafter of the user's machine without bets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from inference.accept import Verdict
from inference.acceptance import AcceptanceModel, read_acceptance
from inference.backends import Model
from inference.drafters.adaptive import AdaptiveDrafter
from inference.forecast import DISTRIBUTED
from inference.navigator import Navigator
from inference.objective import Wish
from inference.pilot import Knowledge, Pilot
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.stats import Traffic
from inference.times import DraftTimes, LinkTimes, Shape, TargetTimes
from inference.tree import TokenTree


@dataclass
class Host:
    """What one row of a host's draft goes by, from text to text. draft: profiled seconds of a call by width; target: of a forward.
    most_nodes: of a tree, below its root.  room: nodes that the row may rank for a tree.
    """

    draft: Mapping[int, float]
    target: Mapping[Shape, float]
    most_nodes: int
    room: int
    acceptance: AcceptanceModel = field(default_factory=read_acceptance)
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        link = LinkTimes()
        link.observe(0.0, 0.0, 0)
        self.known = Knowledge(
            DraftTimes(dict(self.draft)), TargetTimes(dict(self.target)), link, self.acceptance
        )


class HostedDrafter:
    """A Drafter on one row of the draft model of a host."""

    def __init__(self, model: Model, host: Host, *, row: int = 0) -> None:
        self._host, self._pilot = (
            host,
            Pilot(host.known, bets=False, onward=False, clock=host.clock),
        )
        self._drafter = AdaptiveDrafter(model, self._pilot, row=row, room=host.room)
        self._traffic, self._sent = Traffic(), 0.0

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._drafter.open(prompt, params)
        course = Navigator(
            self._host.known,
            Wish(),
            None,
            frozenset({DISTRIBUTED}),
            self._host.most_nodes,
            bets=False,
            greedy=params.greedy,
        ).decide()
        self._pilot.tariff = course.tariff
        self._pilot.expect(
            course.forecast.tokens, course.forecast.effort.times(course.forecast.tokens)
        )
        self._pilot.begin(self._traffic)

    def draft(self, root: int, budget: Budget) -> TokenTree:
        tree = self._drafter.draft(root, budget)
        self._sent = self._host.clock()
        return tree

    def ahead(self) -> bool:
        return False

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        """The target has been the only one at work since the tree was drafted: what it took is what forwards here take."""
        seconds = self._host.clock() - self._sent
        self._traffic.model_seconds += seconds
        self._traffic.away_seconds += seconds
        self._drafter.commit(tree, verdict)
        self._pilot.arrived(self._traffic, len(tree), len(verdict.path) + 1, False)

    def close(self) -> None:
        self._drafter.close()
