"""The arms of the study: the target alone, a draft here, and a draft here that copies, too; and the
stage of an arm, which has a target across a link, on a virtual clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.virtual import Link, MeteredModel, VirtualServer, VirtualSession
from inference.backends import Model
from inference.drafters.growing_proposer import Draft
from inference.engine.engine import Engine
from inference.planner.acceptance import PairStats, read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.times import Table, Times
from inference.times_file import Profile, find_profile

CONTEXT = 256
"""Slots at which the profiles are read where one number is needed."""

BYTE_TIME = 8 / 50e6
"""Seconds a byte takes each way: 50 Mbit/s."""

MOST_NODES = 255
"""Nodes below the root that a forward may have."""

SEQUENCE_LENGTH = 1024
_DESCRIPTION_BYTES = 400


class Profiles(NamedTuple):
    """Times of the target, and of the draft on the user's machine."""

    target: Profile
    here: Profile


PROFILES = Profiles(
    find_profile("llama-3.1-8b-trn1.2xlarge-measured"),
    find_profile(str(Path(__file__).parent / "llama-3.2-1b-int8-laptop-computed.json")),
)


class Reading(NamedTuple):
    """A text as an arm generated it. Seconds, tokens and counts begin behind the first round.

    length: tokens of the whole text
    whole_seconds: seconds from the prompt on
    calls: of the draft, those for prompts included
    proposed: nodes sent
    bytes_up: the last fields are those of Traffic; bytes of messages that have arrived
    """

    seconds: float
    tokens: int
    length: int
    whole_seconds: float
    calls: int
    proposed: int
    bytes_up: int
    bytes_down: int
    forwards: int
    lone: int
    nodes: int


def virtual_server(
    target: Model, vocabulary: int, profiles: Profiles, clock: VirtualClock | None = None
) -> VirtualServer:
    """A target on a clock of its own, or on this one, whose calls take what the profile says."""
    clock = clock or VirtualClock()
    metered = MeteredModel(target, profiles.target, clock.advance)
    times = profiles.target.table(CONTEXT)
    engine = serve(metered, vocabulary, times=times, clock=clock.now)
    return VirtualServer(clock, engine)


class Stage:
    """A user of a target, whose calls take what the profiles say.

    round_trip: seconds
    row: of the draft
    """

    def __init__(
        self,
        server: VirtualServer,
        draft: Model,
        round_trip: float,
        profiles: Profiles,
        row: int = 0,
    ) -> None:
        self.now, self.row = server.clock.now, row
        self.draft = MeteredModel(draft, profiles.here, server.clock.advance)
        self._link, self._server, self._profiles = Link(round_trip, BYTE_TIME), server, profiles
        self.session = VirtualSession(server, self._link)

    def knowledge(self) -> PairStats:
        """PairStats of a client before its first text: draft and link as measured, times as the
        target told them, and nothing learned of the pair.
        """
        round_trip = self._link.crossing(0) + self._link.crossing(_DESCRIPTION_BYTES)
        draft, target = (Times(each.table(CONTEXT)) for each in reversed(self._profiles))
        return PairStats(draft, target, read_acceptance(), round_trip)

    def counts(self) -> tuple[int, ...]:
        """Costs of texts so far: the fields of a Reading from `calls` on."""
        traffic = self.session.traffic
        counted = (getattr(traffic, name) for name in Reading._fields[6:])
        return self.draft.calls, self.session.proposed, *counted


def serve(
    target: Model,
    vocabulary: int,
    *,
    times: Table | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """An engine for as many sessions at a time as the target has rows."""
    return Engine(
        target,
        sequence_length=SEQUENCE_LENGTH,
        max_tree_nodes=1 + MOST_NODES,
        vocabulary=vocabulary,
        times=Times(times, measured=True),
        clock=clock,
    )


class Arm(NamedTuple):
    """A way to make texts. propose: its proposers, which learn from text to text."""

    name: str
    propose: Callable[[Stage], list[Proposer]]


def _drafting(stage: Stage, *, copies: bool = False) -> list[Proposer]:
    prices, known = Prices(battery=True), stage.knowledge()
    return [Draft(stage.draft).proposer(stage.row, known, prices, clock=stage.now, copies=copies)]


ALONE = Arm("target-only", lambda stage: [])
GROWING = Arm("growing", _drafting)
HYBRID = Arm("hybrid", lambda stage: _drafting(stage, copies=True))
"""The draft here that copies, too, which is the default of --role draft."""

ARMS = (ALONE, GROWING, HYBRID)
