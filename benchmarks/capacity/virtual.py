"""Crowds, visitors and tenants on a virtual clock (benchmarks/capacity/world.py).

    python -m benchmarks.capacity.virtual [--parts crowd,arrivals,tenants]
        [--cells neuron:256:0.8:64,...] [--seeds 3] [--load 0.7]
        [--boasting 4 --misses 0.5] [--every 1 --pause 0.3]

Forwards take the profile's time and --late more. Drafts are the scripts of the other measurements,
and take the same time. Figures depend on no machine, so rules of the scheduler can be compared:
the same seed is the same crowd, and every arm meets the same pauses. The window of a crowd begins
0.6 seconds after its coming and lasts 2; tenants stay for 6.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple, TypeAlias

from benchmarks.capacity.client import ALONE, GROWING, ROUNDS, WIDE
from benchmarks.capacity.parts import (
    ARRIVING_CONTEXT,
    ARRIVING_TOKENS,
    CALL_SECONDS,
    LOAD,
    MOST_OUTPUT,
    NARROW,
    TENANTS_CONTEXT,
    WANTED,
    Cell,
    Visits,
    arriving_seconds,
    visits_of,
)
from benchmarks.capacity.script import (
    SKILLS,
    BoastingDraft,
    GrowingDraft,
    RoundDraft,
    WideDraft,
)
from benchmarks.capacity.target import CURVES
from benchmarks.capacity.world import Delays, Wish, World, random_prompt
from benchmarks.harness import command, table_lines
from inference.order import Pace

PARTS = ("crowd", "arrivals", "tenants")
ARRIVING_ROWS = 64
TENANTS_SECONDS = 6.0


class Boasters(NamedTuple):
    """How many of a crowd's drafts miss a share of all positions, and claim as the others."""

    users: int = 0
    misses: float = 0.5


class Window(NamedTuple):
    """When what users get is counted, in seconds after their coming."""

    settle: float
    seconds: float


class Seen(NamedTuple):
    """An arm of a crowd in its window. rates: tokens a second of each user.  nodes: of a row in a
    forward.  forward: seconds of one.
    """

    rates: list[float]
    nodes: float
    forward: float


def draft(arm: str, temperature: float) -> GrowingDraft | None:
    """What a user of an arm drafts with."""
    skill = SKILLS[temperature]
    if arm == GROWING:
        return GrowingDraft(skill, 0.0)
    if arm == ROUNDS:
        return RoundDraft(skill, 0.0)
    return WideDraft(skill) if arm == WIDE else None


def wish(arm: str, cell: Cell, number: int) -> Wish:
    """A user of a crowd, who stays longer than its window."""
    pace = Pace.WAIT if arm == ROUNDS else Pace.GO_ON
    call = 0.0 if arm == WIDE else CALL_SECONDS
    prompt = random_prompt(cell.context, cell.context)
    return Wish(
        number, prompt, MOST_OUTPUT, cell.temperature, draft(arm, cell.temperature), call, pace
    )


def stay(cell: Cell, wishes: Sequence[Wish], window: Window, delays: Delays, seed: int) -> Seen:
    """Users who come together and stay."""
    world = World(CURVES[cell.curve], cell.sessions, cell.context + MOST_OUTPUT, delays, seed)
    world.stay(wishes)
    world.play(world.clock.now + window.settle)
    begun, made = world.clock.now, len(world.model.made)
    lengths = [user.session.length for user in world.users]
    world.play(begun + window.seconds)
    took = world.clock.now - begun
    rates = [
        (user.session.length - length) / took
        for user, length in zip(world.users, lengths, strict=True)
    ]
    forwards = world.model.made[made:]
    return Seen(rates, mean(one[1] for one in forwards), median(one[2] for one in forwards))


def crowd(
    cell: Cell, arm: str, window: Window, seed: int, delays: Delays, boasters: Boasters
) -> Seen:
    """A crowd whose users all do the same; some of them may boast."""
    wishes = [wish(arm, cell, 1000 * seed + at) for at in range(cell.sessions)]
    for at in range(boasters.users if arm == GROWING else 0):
        boasting = BoastingDraft(SKILLS[cell.temperature], boasters.misses)
        wishes[at] = wishes[at]._replace(draft=boasting)
    return stay(cell, wishes, window, delays, seed)


def arrivals(
    arm: str, temperature: float, users: int, load: float, seed: int, delays: Delays
) -> Visits:
    """Users who come by chance, ask for a few tokens and go. Every arm has the same moments."""
    every, chance, at = arriving_seconds(ARRIVING_ROWS) / load, random.Random(seed), 0.0  # noqa: S311
    coming = list[tuple[float, Wish]]()
    for number in range(users):
        at += chance.expovariate(1 / every)
        prompt = random_prompt(1 + 1000 * seed + number, ARRIVING_CONTEXT)
        guesses = draft(arm, temperature)
        coming.append(
            (at, Wish(number, prompt, ARRIVING_TOKENS, temperature, guesses, CALL_SECONDS))
        )
    world = World(CURVES["neuron"], ARRIVING_ROWS, 2 * ARRIVING_CONTEXT, delays, seed)
    return visits_of(temperature, arm, world.visit(coming), slower=1.0)


def tenants(curve: str, narrow: str | None, window: Window, seed: int, delays: Delays) -> Seen:
    """A tenant that claims that its full trees are certain, and three that draft as `narrow`; all
    four alone if it is None.
    """
    cell = Cell(curve, TENANTS_CONTEXT, 0.0, 1 + NARROW)
    arms = [ALONE] * cell.sessions if narrow is None else [WIDE, *[narrow] * NARROW]
    wishes = [
        wish(arm, cell, 1000 * seed + at)._replace(tenant=f"tenant-{at}")
        for at, arm in enumerate(arms)
    ]
    return stay(cell, wishes, window, delays, seed)


Row: TypeAlias = Mapping[str, str]
"""A row of a table, by heads."""


def crowds(given: argparse.Namespace, delays: Delays) -> Iterator[Row]:
    """Every arm of every cell."""
    boasters, window = Boasters(given.boasting, given.misses), Window(given.settle, given.seconds)
    for name in given.cells.split(","):
        curve, context, heat, sessions = name.split(":")
        cell = Cell(curve, int(context), float(heat), int(sessions))
        for seed in range(given.seeds):
            seen = {
                arm: crowd(cell, arm, window, seed, delays, boasters)
                for arm in (ALONE, *given.arms.split(","))
            }
            usual = median(seen[ALONE].rates)
            for arm, one in seen.items():
                yield {
                    "cell": name,
                    "seed": f"{seed}",
                    "arm": arm,
                    "tokens/s": f"{sum(one.rates):.0f}",
                    "of target-only": f"{sum(one.rates) / sum(seen[ALONE].rates):.2f}",
                    "slowest user": f"{min(one.rates) / usual:.3f}",
                    **{f"at {least}": f"{sum(r >= least for r in one.rates)}" for least in WANTED},
                    "nodes a row": f"{one.nodes:.1f}",
                    "forward, ms": f"{1e3 * one.forward:.0f}",
                }


def visiting(given: argparse.Namespace, delays: Delays) -> Iterator[Row]:
    """Both arms, for each seed."""
    for seed in range(given.seeds):
        for arm in (ALONE, GROWING):
            seen = arrivals(arm, given.temperature, given.users, given.load, seed, delays)
            yield {
                "arm": arm,
                "seed": f"{seed}",
                "users": f"{seen.users}",
                "TTFT p50": f"{seen.ttft_p50:.0f}",
                "TTFT p99": f"{seen.ttft_p99:.0f}",
                "gap p50": f"{seen.gap_p50:.0f}",
                "gap p99": f"{seen.gap_p99:.0f}",
                "token p99": f"{seen.token_p99:.0f}",
                "mean per token p50": f"{seen.tpot_p50:.1f}",
                "p99": f"{seen.tpot_p99:.1f}",
            }


def tenancies(given: argparse.Namespace, delays: Delays) -> Iterator[Row]:
    """Narrow tenants who draft honestly or not at all, on every curve."""
    window = Window(given.settle, TENANTS_SECONDS)
    for curve in CURVES:
        for seed in range(given.seeds):
            alone = tenants(curve, None, window, seed, delays)
            for narrow in (ALONE, GROWING):
                seen = tenants(curve, narrow, window, seed, delays)
                wide, *others = (
                    mine / own for mine, own in zip(seen.rates, alone.rates, strict=True)
                )
                yield {
                    "curve": curve,
                    "seed": f"{seed}",
                    "narrow tenants": narrow,
                    "slowest narrow, of root-only": f"{min(others):.3f}",
                    "wide, of root-only": f"{wide:.2f}",
                    "nodes a row": f"{seen.nodes:.1f}",
                }


MADE = {"crowd": crowds, "arrivals": visiting, "tenants": tenancies}


def parser() -> argparse.ArgumentParser:
    made = command(__doc__)
    made.add_argument("--parts", default="crowd", help=f"of {','.join(PARTS)}")
    made.add_argument("--cells", default="neuron:256:0.8:64,neuron:256:0:64")
    made.add_argument("--arms", default=GROWING, help=f"of a crowd, as {GROWING},{ROUNDS}")
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--settle", type=float, default=0.6, help="seconds before the window")
    made.add_argument("--seconds", type=float, default=2.0, help="of a crowd's window")
    made.add_argument("--boasting", type=int, default=0, help="users whose drafts claim too much")
    made.add_argument("--misses", type=float, default=0.5, help="positions at which these miss")
    made.add_argument("--users", type=int, default=240, help="who come and go")
    made.add_argument("--load", type=float, default=LOAD, help="of what target-only could serve")
    made.add_argument("--temperature", type=float, default=0.0, help="of who come and go")
    made.add_argument("--late", type=float, default=0.003, help="seconds more of a forward")
    made.add_argument("--link", type=float, default=0.004, help="seconds of a message")
    made.add_argument("--work", type=float, default=0.0, help="seconds of a fifth of the engine's")
    made.add_argument("--every", type=float, default=0.0, help="seconds between pauses; 0: none")
    made.add_argument("--pause", type=float, default=0.3, help="seconds that the machine stops")
    return made


def main() -> int:
    asking = parser()
    given = asking.parse_args()
    delays = Delays(given.late, given.link, given.work, given.every, given.pause)
    if unknown := set(given.parts.split(",")) - set(PARTS):
        asking.error(f"--parts: got {', '.join(sorted(unknown))}, there are {', '.join(PARTS)}")
    for part in given.parts.split(","):
        rows = list[Row]()
        for row in MADE[part](given, delays):
            rows.append(row)
            print(*row.values(), file=sys.stderr, flush=True)
        print("\n".join(["", *table_lines(list(rows[0]), [list(row.values()) for row in rows])]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
