"""Where an arm plays: a draft here, and across a link a target with a draft of its own beside
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.dial import Agreement, Level, Text, measure
from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.virtual import Link, MeteredModel, VirtualSession
from inference.backends import Model
from inference.backends.timed import TimeProfile, find_profile
from inference.decode import TargetSession
from inference.draft_thread import Drafter, inline
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.engine.colocated_drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.planner.acceptance_file import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.proposer import Proposer
from inference.stats import Traffic
from inference.times import DraftTimes, LatencyModel, Shape

_OURS = Path(__file__).parent / "profiles"


class CallTimes(NamedTuple):
    """Seconds of a call, as they were measured before the first text.

    here: of the draft on the user's machine, by width
    target: of a forward, by rows and nodes
    beside: of the draft beside the target, by width
    """

    here: Mapping[int, float]
    target: Mapping[Shape, float]
    beside: Mapping[int, float]


class Spent(NamedTuple):
    """What texts have cost so far beside time.

    drafted: seconds that the draft on the user's machine was busy
    calls: its calls, those for prompts included
    proposed: nodes sent
    traffic: the target's own work, bytes and messages
    """

    drafted: float
    calls: int
    proposed: int
    traffic: Traffic


class Profiles(NamedTuple):
    """What the target takes, the draft on the user's machine, and the draft beside the target."""

    target: TimeProfile
    here: TimeProfile
    beside: TimeProfile

    def slower(self, times: float) -> Profiles:
        """Everything takes so many times as long."""
        return Profiles(*(profile.slower(times) for profile in self))

    @property
    def times(self) -> CallTimes:
        """The seconds that measuring these devices would find."""
        here, beside = (
            {width: profile.seconds(1, width, CONTEXT) for width in profile.nodes}
            for profile in (self.here, self.beside)
        )
        return CallTimes(
            here,
            {(1, nodes): self.target.seconds(1, nodes, CONTEXT) for nodes in self.target.nodes},
            beside,
        )


def laptop(name: str) -> TimeProfile:
    """A computed draft on the user's machine, such as int8-laptop-computed, the study's.

    Raises InvalidRequest for an unknown name.
    """
    return find_profile(str(_OURS / f"llama-3.2-1b-{name}.json"))


PROFILES = Profiles(
    find_profile("llama-3.1-8b-trn1.2xlarge-measured"),
    laptop("int8-laptop-computed"),
    find_profile(str(_OURS / "llama-3.2-1b-trn1.2xlarge-computed.json")),
)


CONTEXT = 256
"""Slots at which the profiles are read where one number is needed."""

BYTE_TIME = 8 / 50e6
"""Seconds a byte takes each way: 50 Mbit/s."""

MOST_NODES = 255
"""Nodes below the root that a forward may have."""

PROBES = 9
"""Exchanges by which a client measures the link before its first text."""

SEQUENCE_LENGTH = 1024
_DESCRIPTION_BYTES = 400


class Drafting(NamedTuple):
    """What the draft here has done: seconds, and calls."""

    seconds: float
    calls: int


@dataclass(frozen=True)
class Stage:
    """What an arm may use.

    now: seconds of whatever clock runs here
    draft: the model on the user's machine
    drafting: what that model has done so far
    session: with the target across the link, where a draft stands beside it
    round_trips: seconds of the link, as they were measured before the first text
    proposed: nodes sent so far, where somebody counts them
    drafter: the thread on which proposers work: the loop's, by a virtual clock
    """

    now: Callable[[], float]
    draft: Model
    drafting: Callable[[], Drafting]
    session: TargetSession
    round_trips: Sequence[float]
    times: CallTimes
    most_nodes: int = MOST_NODES
    proposed: Callable[[], int] = lambda: 0
    drafter: Callable[[Sequence[Proposer]], Drafter] = inline

    def knowledge(self) -> Knowledge:
        """What a client knows before its first text: draft and link as measured, times as the
        target told them, and nothing learned of the pair.
        """
        draft, target = DraftTimes(self.times.here), LatencyModel(self.times.target)
        return Knowledge(draft, target, read_acceptance(), median(self.round_trips))

    def spent(self) -> Spent:
        """What texts have cost so far; bytes are those of messages that have arrived."""
        return Spent(*self.drafting(), self.proposed(), self.session.traffic.copy())


class Pair:
    """A target, a draft of one level of agreement, and texts that the target says."""

    def __init__(self, prefixes: Prefixes, level: Level, texts: tuple[Text, ...]) -> None:
        self.texts, self.vocabulary = texts, prefixes.vocabulary
        self._target, self._draft = PrefixModel(prefixes, 0.0), level.draft(prefixes)
        self.agreement: Agreement = measure(prefixes, self._draft, texts)

    def target(self) -> PrefixModel:
        """The target, with a row of its own."""
        return self._target.apart()

    def draft(self) -> PrefixModel:
        """The draft, with a row of its own."""
        return self._draft.apart()


def serve(
    target: Model,
    vocabulary: int,
    *,
    times: Mapping[Shape, float] | None = None,
    host: ColocatedDrafter | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Engine:
    """An engine for one session at a time."""
    return Engine(
        target,
        sequence_length=SEQUENCE_LENGTH,
        max_tree_nodes=1 + MOST_NODES,
        vocabulary=vocabulary,
        times=LatencyModel(times, measured=True),
        host=host,
        clock=clock,
    )


def hosted(
    draft: Model, times: CallTimes, clock: Callable[[], float] = time.perf_counter
) -> ColocatedDrafter:
    """The draft beside a target of these times."""

    def knowledge() -> Knowledge:
        draft, target = DraftTimes(times.beside), LatencyModel(times.target)
        return Knowledge(draft, target, read_acceptance())

    return ColocatedDrafter(Draft(draft), knowledge, room=TUNING.room, clock=clock)


def virtual_stage(pair: Pair, round_trip: float, profiles: Profiles = PROFILES) -> Stage:
    """A stage on a clock of its own, with the pair's draft on both ends.

    round_trip: seconds
    """
    return stage_of(
        pair.draft(), pair.target(), pair.vocabulary, round_trip, profiles, beside=pair.draft()
    )


def stage_of(
    draft: Model,
    target: Model,
    vocabulary: int,
    round_trip: float,
    profiles: Profiles = PROFILES,
    beside: Model | None = None,
) -> Stage:
    """A stage on a clock of its own, whose calls take what the profiles say.

    round_trip: seconds
    beside: a draft beside the target
    """
    clock, times, link = VirtualClock(), profiles.times, Link(round_trip, BYTE_TIME)
    here = MeteredModel(draft, profiles.here, clock.advance)
    host = None
    if beside is not None:
        metered = MeteredModel(beside, profiles.beside, clock.advance)
        host = hosted(metered, times, clock.now)
    engine = serve(
        MeteredModel(target, profiles.target, clock.advance),
        vocabulary,
        times=times.target,
        host=host,
        clock=clock.now,
    )
    session = VirtualSession(clock, engine, link)
    return Stage(
        now=clock.now,
        draft=here,
        drafting=lambda: Drafting(here.seconds, here.calls),
        session=session,
        proposed=lambda: session.proposed,
        round_trips=[link.crossing(0) + link.crossing(_DESCRIPTION_BYTES)] * PROBES,
        times=times,
    )
