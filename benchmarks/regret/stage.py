"""Where an arm plays: a draft here, and across a link a target with a draft of its own beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.dial import Agreement, Level, Text, measure
from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.virtual import Link, Meter, MeteredModel, VirtualVerifier
from grpc_comm.client import Probe
from inference.backends import Model
from inference.backends.timed import TimeProfile, find_profile
from inference.decode import Verifier
from inference.drafters.hosted import Host
from inference.engine import Engine
from inference.times import DraftTimes, LinkTimes, Shape, TargetTimes
from outrider.calibrate import PROBES

_OURS = Path(__file__).parent / "profiles"


class CallTimes(NamedTuple):
    """Seconds of a call, as they were measured before the first text: of the draft here and of the one beside the target by width, of a
    forward of the target by rows and nodes."""

    here: Mapping[int, float]
    target: Mapping[Shape, float]
    beside: Mapping[int, float]


class Profiles(NamedTuple):
    """What the target takes, the draft on the user's machine, and the draft beside the target."""

    target: TimeProfile
    here: TimeProfile
    beside: TimeProfile

    def slower(self, times: float) -> Profiles:
        """Everything takes so many times as long."""
        names = ("pass_seconds", "slot_seconds", "node_seconds", "node_slot_seconds")
        return Profiles(
            *(
                replace(profile, **{name: times * getattr(profile, name) for name in names})
                for profile in self
            )
        )

    @property
    def times(self) -> CallTimes:
        """What measuring would find."""
        here, beside = (
            {width: profile.seconds(1, width, CONTEXT) for width in profile.nodes}
            for profile in (self.here, self.beside)
        )
        return CallTimes(
            here,
            {(1, nodes): self.target.seconds(1, nodes, CONTEXT) for nodes in self.target.nodes},
            beside,
        )


PROFILES = Profiles(
    find_profile("llama-3.1-8b-trn1.2xlarge-measured"),
    find_profile(str(_OURS / "llama-3.2-1b-int8-laptop-computed.json")),
    find_profile(str(_OURS / "llama-3.2-1b-trn1.2xlarge-computed.json")),
)

CONTEXT = 256
"""Slots at which the profiles are read where one number is needed."""

BYTE_TIME = 8 / 50e6
"""Seconds a byte takes each way: 50 Mbit/s."""

MOST_NODES = 256
"""Of a tree below its root."""

ROOM_BESIDE = 1024
"""Nodes that the draft beside the target may rank for a tree."""

SEQUENCE_LENGTH = 1024
_DESCRIPTION_BYTES = 400


@dataclass(frozen=True)
class Stage:
    """What an arm may use. now: seconds of whatever clock runs here.  draft: here.  drafted: seconds that it was busy.
    verifier: the target across the link, with a draft beside it.  probe: asks that target for nothing but an answer.
    most_nodes: of a tree below its root.  room_beside: nodes that the draft beside the target may rank for a tree.
    """

    now: Callable[[], float]
    draft: Model
    drafted: Callable[[], float]
    verifier: Verifier
    probe: Callable[[], Probe]
    times: CallTimes = PROFILES.times
    most_nodes: int = MOST_NODES
    room_beside: int = ROOM_BESIDE

    @property
    def draft_times(self) -> DraftTimes:
        """What the user's machine has measured of the draft."""
        return DraftTimes(self.times.here)

    @property
    def target_times(self) -> TargetTimes:
        """What the target says of itself."""
        return TargetTimes(self.times.target)

    def link_times(self) -> LinkTimes:
        """What the user's machine has measured of the link before the first text."""
        link = LinkTimes()
        for _ in range(PROBES):
            probe = self.probe()
            link.observe(probe.seconds, 0.0, probe.transferred)
        return link

    @property
    def beside_times(self) -> DraftTimes:
        """What the target says of the draft beside it."""
        return DraftTimes(self.times.beside)

    def lost(self) -> float:
        """Seconds of all exchanges so far that the target did not compute in."""
        traffic = self.verifier.traffic
        return (
            traffic.away_seconds
            - traffic.queue_seconds
            - traffic.prefill_seconds
            - traffic.model_seconds
        )


class Pair:
    """A target, a draft of one level of agreement, and texts that the target says."""

    def __init__(self, prefixes: Prefixes, level: Level, texts: tuple[Text, ...]) -> None:
        self.texts, self.vocabulary = texts, prefixes.vocabulary
        self._target, self._draft = PrefixModel(prefixes, 0.0), PrefixModel(prefixes, level.noise)
        self.agreement: Agreement = measure(prefixes, self._draft, texts)

    def target(self) -> PrefixModel:
        """With a row of its own."""
        return self._target.apart()

    def draft(self) -> PrefixModel:
        """With a row of its own."""
        return self._draft.apart()


def serve(target: Model, vocabulary: int) -> Engine:
    """An engine for one session at a time."""
    return Engine(
        target,
        sequence_length=SEQUENCE_LENGTH,
        max_tree_nodes=1 + MOST_NODES,
        vocabulary=vocabulary,
    )


def virtual_stage(pair: Pair, round_trip: float) -> Stage:
    """A stage on a clock of its own; round_trip in seconds."""
    clock, drafting, there = VirtualClock(), Meter(), Meter()

    def draft_here(seconds: float) -> None:
        drafting.add(seconds)
        clock.advance(seconds)

    host = Host(
        PROFILES.times.beside,
        PROFILES.times.target,
        MOST_NODES,
        ROOM_BESIDE,
        clock=lambda: there.seconds,
    )
    engine, link = (
        serve(MeteredModel(pair.target(), PROFILES.target, there.add), pair.vocabulary),
        Link(round_trip, BYTE_TIME),
    )
    return Stage(
        now=clock.now,
        draft=MeteredModel(pair.draft(), PROFILES.here, draft_here),
        drafted=lambda: drafting.seconds,
        verifier=VirtualVerifier(
            engine, MeteredModel(pair.draft(), PROFILES.beside, there.add), host, there, clock, link
        ),
        probe=lambda: Probe(
            link.crossing(0) + link.crossing(_DESCRIPTION_BYTES), _DESCRIPTION_BYTES
        ),
    )
