"""How many users one target sustains at an equal rate each, where they draft themselves and where its host drafts for them.

    nice -n -10 python -m benchmarks.capacity_fused [--slower 4] [--rounds 6,4,2.5] [--json FILE]

All users have trees of 16 nodes verified on one engine, which batches. Distributed: each user drafts for --think_ms, round trip
included, which costs the target nothing. Fused: nobody thinks, but before each forward the same chip drafts for all of its rows, level
by level, with a profile of a small model (benchmarks/profiles). One by one: the same, one session after the other, as
inference/drafters/pool.py does. Sustained at a rate are the most users who get it on average.

All figures are EMULATION of time (inference/backends/timed.py): a model that counts chooses at once, and each forward takes what the
profiles say. --slower makes all of these times longer and divides what is told, so that what this machine's own processor needs (the
engine, the users) weighs less; probes whose forwards ended late are made again (benchmarks/capacity.py). Assumed: one graph for trees of
16 nodes, so that none is cut and all kinds make the same rounds, and graphs for every fourth number of rows, so that steps of padding do
not decide; draft and target take turns on the chip without a pause.

Closed form (inference/planner.py, capacity_over_fused): 1 + D * t_d' / t_v users who draft for each one who does not, both times at the
rows that a forward of the fused host had on average. What the profiles allow with whole forwards stands beside what was measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from benchmarks.capacity import CONTEXT, TEXT, Probe, Study, probe, sustained
from benchmarks.engine import VOCABULARY, NextToken
from benchmarks.scripted import ACCEPTED, Text
from benchmarks.users import NODES
from inference.backends.timed import TimeProfile, find_profile
from inference.planner import capacity_over_fused

PAIRS = tuple(
    (
        f"llama-3.1-8b-trn1.2xlarge-{target}",
        str(Path(__file__).parent / "profiles" / f"llama-3.2-1b-trn1.2xlarge-{draft}.json"),
    )
    for target, draft in (("measured", "scaled"), ("roofline", "roofline"))
)
"""A target's profile, and that of a draft on the same chip."""

ROWS = tuple(range(4, 65, 4))
PROMPT = 8
WITHIN = 48
"""Sustained users are told within one in so many."""

TOKENS = sum(ACCEPTED) / len(ACCEPTED) + 1
"""Of a round, on average."""


@dataclass(frozen=True)
class FusedProfile(TimeProfile):
    """Of a target before each of whose forwards the same chip drafts, for at most `together` rows in one call."""

    draft: TimeProfile
    together: int

    def seconds(self, rows: int, nodes: int, context: int) -> float:
        turns, rest = divmod(rows, self.together)
        drafting = turns * drafting_seconds(self.draft, self.together, nodes, context)
        if rest:
            drafting += drafting_seconds(self.draft, rest, nodes, context)
        return super().seconds(rows, nodes, context) + drafting


def drafting_seconds(draft: TimeProfile, rows: int, nodes: int, context: int) -> float:
    """A round's draft for rows that take part in each call: the levels of a binary tree, one call each, but the deepest."""
    return sum(draft.seconds(rows, 2**level, context) for level in range(int(math.log2(nodes))))


def slower(profile: TimeProfile, times: float) -> TimeProfile:
    """All that it takes is so many times longer."""
    changed = {
        field.name: times * getattr(profile, field.name)
        for field in fields(TimeProfile)
        if field.name.endswith("_seconds")
    }
    return replace(profile, **changed)


class Users(NamedTuple):
    """Numbers of users: who draft themselves, and whose host does, for all of a forward or one by one."""

    distributed: int
    fused: int
    one_by_one: int

    @property
    def ratio(self) -> float:
        """What distributing brings."""
        return self.distributed / self.fused


class Found(NamedTuple):
    """At one rate, rounds a second and user: users sustained, users that the profiles allow, and the closed form for the ratio."""

    target: str
    rounds: float
    sustained: Users
    allowed: Users
    rows: float  # of a forward of the fused host that sustains so many, on average
    closed_form: float

    @property
    def error(self) -> float:
        """Of the closed form, against what was measured."""
        return self.closed_form / self.sustained.ratio - 1


class Comparison:
    """One target with one draft; all times are `times` longer while they are measured."""

    def __init__(
        self,
        target: TimeProfile,
        draft: TimeProfile,
        think: float,
        times: float,
        seconds: float,
        most: int,
    ) -> None:
        self._target = slower(replace(target, rows=ROWS, nodes=(NODES, target.nodes[-1])), times)
        self._draft, self._times, self._most = slower(replace(draft, rows=ROWS), times), times, most
        small, texts = (
            NextToken(most),
            [
                Text(list(range(number * CONTEXT, number * CONTEXT + TEXT)), PROMPT)
                for number in range(most)
            ],
        )
        batched, single = (
            FusedProfile(**vars(self._target), draft=self._draft, together=rows)
            for rows in (ROWS[-1], 1)
        )
        self._distributed = Study(small, texts, VOCABULARY, self._target, think * times, seconds)
        self._fused = Study(small, texts, VOCABULARY, batched, 0.0, seconds)
        self._one_by_one = Study(small, texts, VOCABULARY, single, 0.0, seconds)

    def at(self, rounds: float) -> Found:
        """Users who get so many rounds a second each."""
        studies = (self._distributed, self._fused, self._one_by_one)
        distributed, fused, one_by_one = (self._sustained(study, rounds) for study in studies)
        rows = round(fused.rows)
        drafting, verify = (
            drafting_seconds(self._draft, rows, NODES, CONTEXT),
            self._target.seconds(rows, NODES, CONTEXT),
        )
        return Found(
            target=self._target.name,
            rounds=rounds,
            sustained=Users(distributed.users, fused.users, one_by_one.users),
            allowed=Users(*(self._allowed(study, rounds) for study in studies)),
            rows=fused.rows,
            closed_form=capacity_over_fused(drafting, verify),
        )

    def _allowed(self, study: Study, rounds: float) -> int:
        """Users, as far as that is probed."""
        return max(
            (
                users
                for users in range(1, self._most + 1)
                if study.allowed(users) * self._times >= rounds
            ),
            default=0,
        )

    def _sustained(self, study: Study, rounds: float) -> Probe:
        """The probe of the most users who get this rate."""
        allowed = self._allowed(study, rounds)
        if not allowed:
            raise SystemExit(
                f"{rounds:g} rounds a second are more than a lonely user of {self._target.name} gets: ask for fewer"
            )
        probes: dict[int, Probe] = {}

        def holds(users: int) -> bool:
            probes[users] = probe(study.batched, users)
            return probes[users].tokens * self._times >= rounds * TOKENS

        users = sustained(holds, min(self._most, allowed + allowed // 8 + 1), WITHIN)
        return probes.get(users) or probe(study.batched, users)


def say(found: Sequence[Found]) -> None:
    """A table in Markdown."""
    print(
        "| target | tokens/s each | distributed (allowed) | fused | one by one | ratio to fused (allowed) | 1 + D t_d'/t_v | error |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for one in found:
        users = " | ".join(
            f"{measured} ({allowed})"
            for measured, allowed in zip(one.sustained, one.allowed, strict=True)
        )
        ratios = f"{one.sustained.ratio:.2f} ({one.allowed.ratio:.2f}) | {one.closed_form:.2f} | {one.error:+.0%}"
        print(f"| emulated: {one.target} | {one.rounds * TOKENS:g} | {users} | {ratios} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rounds",
        default="6,4,2.5",
        help="rates to try, rounds a second and user (default: %(default)s)",
    )
    parser.add_argument(
        "--think_ms",
        type=float,
        default=100.0,
        help="of users who draft, round trip included (default: %(default)g)",
    )
    parser.add_argument(
        "--slower",
        type=float,
        default=1.0,
        help="emulated times are so many times longer (default: %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of each probe (default: %(default)g)"
    )
    parser.add_argument(
        "--users", type=int, default=380, help="probed at most (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    if given.users * CONTEXT > VOCABULARY:
        parser.error(
            f"--users {given.users}: the model that counts has texts for {VOCABULARY // CONTEXT}"
        )
    found = []
    for target, draft in PAIRS:
        comparison = Comparison(
            find_profile(target),
            find_profile(draft),
            given.think_ms / 1e3,
            given.slower,
            given.seconds,
            given.users,
        )
        for rounds in given.rounds.split(","):
            print(f"emulated: {target}, {rounds} rounds a second each", flush=True)
            found.append(comparison.at(float(rounds)))
    say(found)
    if given.json:
        records = [
            one._asdict() | {"sustained": one.sustained._asdict(), "allowed": one.allowed._asdict()}
            for one in found
        ]
        Path(given.json).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
