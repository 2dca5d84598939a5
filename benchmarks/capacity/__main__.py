"""Crowds, visitors and tenants of one target, on a virtual clock (benchmarks/capacity/world.py).

    python -m benchmarks.capacity [--parts crowd,arrivals,tenants]
        [--cells neuron:256:0.8:64,...] [--load 0.7] [--every 1 --pause 0.3]

crowd: sessions that stay, target-only and with growing drafts; a cell is
curve:context:temperature:sessions. arrivals: users who come by chance, ask for 48 tokens and go.
tenants: one that claims that all of its full trees are certain, beside three others.

Forwards take the profile's time and --late more. Drafts are scripts. Figures depend on no machine:
the same seed is the same crowd, and every arm meets the same pauses. The window of a crowd begins
0.6 seconds after its coming and lasts 2; tenants stay for 6. Every text is held against what the
target must say.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean, median
from typing import Annotated, NamedTuple, TypeAlias

from benchmarks.capacity.script import SKILLS, GrowingDraft, WideDraft
from benchmarks.capacity.world import CHUNK, Came, Delays, Wish, World, random_prompt
from benchmarks.harness import Flags, JsonFile, run, table_lines, write_json
from inference.backends.timed import TimeProfile, find_profile
from inference.flags.group import Shown
from inference.flags.values import Words, among

PARTS = ("crowd", "arrivals", "tenants")
ARRIVING_ROWS = 64
TENANTS_SECONDS = 6.0

ALONE, GROWING, WIDE = "target-only", "growing", "wide"
"""Arms of a user; `wide` claims that all of its full trees are certain."""

CALL_SECONDS = 0.0105
"""Seconds of a call of a user's draft, as the study's laptop takes."""

WANTED = (12, 40)
"""Tokens a second of each user."""

MOST_OUTPUT = 1024
"""Tokens that a session of a crowd may come to in its window."""

LOAD, ARRIVING_TOKENS, ARRIVING_CONTEXT = 0.7, 48, 256
"""Part of the capacity that users who come and go ask for; tokens of each, and of its prompt."""

NARROW, TENANTS_CONTEXT = 3, 16
"""Tenants beside the wide one, and tokens of their prompts."""

_SIZES = (1, 2, 4, 8, 16, 32, 64)


def cpu_like(name: str, source: str, fixed: float, node: float) -> TimeProfile:
    """A machine on which the first few nodes hide behind the weights, and all others cost alike."""
    assumes = "Keys and values cost nothing beside the weights and the arithmetic."
    sizes = (*_SIZES, 128, 256)
    return TimeProfile(name, source, assumes, fixed, 0.0, node, 0.0, _SIZES, sizes, 256)


CURVES = {
    "neuron": find_profile("llama-3.1-8b-trn1.2xlarge-measured"),
    "cpu": cpu_like(
        "Qwen2.5-Coder 1.5B in int8, two threads",
        "126 ms a forward of one node and 521 ms of 64 (docs/neuron-pass.md)",
        0.126,
        0.00814,
    ),
    "steep": cpu_like(
        "a CPU in float32", "made up: two tokens take twice as long as one", 0.02, 0.02
    ),
}


class Cell(NamedTuple):
    """A crowd."""

    curve: str
    context: int
    temperature: float
    sessions: int


class Visits(NamedTuple):
    """Waits of users who come and go, in milliseconds.

    ttft: until the first token
    gap: between messages with tokens
    token: between tokens, of which several may come in a message
    tpot: mean of a user's tokens after the first
    """

    users: int
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    token_p99: float
    tpot_p50: float
    tpot_p99: float


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
    """Draft of a user of an arm."""
    if arm == GROWING:
        return GrowingDraft(SKILLS[temperature])
    return WideDraft(SKILLS[temperature]) if arm == WIDE else None


def wish(arm: str, cell: Cell, number: int) -> Wish:
    """A user of a crowd, who stays longer than its window."""
    call = 0.0 if arm == WIDE else CALL_SECONDS
    prompt = random_prompt(cell.context, cell.context)
    return Wish(number, prompt, MOST_OUTPUT, cell.temperature, draft(arm, cell.temperature), call)


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


def crowd(cell: Cell, arm: str, window: Window, seed: int, delays: Delays) -> Seen:
    """A crowd whose users all do the same."""
    wishes = [wish(arm, cell, 1000 * seed + at) for at in range(cell.sessions)]
    return stay(cell, wishes, window, delays, seed)


def arriving_seconds(rows: int) -> float:
    """Seconds of the Neuron-like target that a user takes who comes and goes."""
    profile, context = CURVES["neuron"], ARRIVING_CONTEXT
    share = profile.seconds(rows, 1, context + ARRIVING_TOKENS) / rows
    return profile.seconds(1, CHUNK, context) + ARRIVING_TOKENS * share


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
    return visits_of(world.visit(coming))


def visits_of(came: Sequence[Came]) -> Visits:
    """Waits of users who came and went."""
    heard = [one for one in came if len(one.events) > 1]
    first = [1e3 * (one.events[0][0] - one.starts) for one in heard]
    gaps = [1e3 * (after[0] - before[0]) for one in heard for before, after in pairwise(one.events)]
    together = sum(n - 1 for one in heard for _, n in one.events)
    each = [
        1e3 * (one.events[-1][0] - one.events[0][0]) / sum(n for _, n in one.events[1:])
        for one in heard
    ]
    return Visits(
        len(came),
        median(first),
        _p99(first),
        median(gaps),
        _p99(gaps),
        _p99([*gaps, *[0.0] * together]),
        median(each),
        _p99(each),
    )


def _p99(values: Sequence[float]) -> float:
    """The value that 99 % do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


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


class Options(Flags):
    parts: Annotated[Words, among(PARTS), Shown("NAME,...")] = ("crowd",)
    cells: Words = ("neuron:256:0.8:64", "neuron:256:0:64")
    seeds: int = 3
    settle: float = 0.6
    """seconds before the window"""
    seconds: float = 2.0
    """of a crowd's window"""
    users: int = 240
    """who come and go"""
    load: float = LOAD
    """of what target-only could serve"""
    temperature: float = 0.0
    """of who come and go"""
    late: float = 0.003
    """seconds more of a forward"""
    link: float = 0.004
    """seconds of a message"""
    work: float = 0.0
    """seconds of a fifth of the engine's"""
    every: float = 0.0
    """seconds between pauses; 0: none"""
    pause: float = 0.3
    """seconds that the machine stops"""
    json_file: JsonFile = None

    @property
    def delays(self) -> Delays:
        return Delays(self.late, self.link, self.work, self.every, self.pause)


def crowds(given: Options) -> Iterator[Row]:
    """Every arm of every cell."""
    window = Window(given.settle, given.seconds)
    for name in given.cells:
        curve, context, heat, sessions = name.split(":")
        cell = Cell(curve, int(context), float(heat), int(sessions))
        for seed in range(given.seeds):
            seen = {arm: crowd(cell, arm, window, seed, given.delays) for arm in (ALONE, GROWING)}
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


def visiting(given: Options) -> Iterator[Row]:
    """Both arms, for each seed."""
    for seed in range(given.seeds):
        for arm in (ALONE, GROWING):
            seen = arrivals(arm, given.temperature, given.users, given.load, seed, given.delays)
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


def tenancies(given: Options) -> Iterator[Row]:
    """Narrow tenants who draft honestly or not at all, on every curve."""
    window = Window(given.settle, TENANTS_SECONDS)
    for curve in CURVES:
        for seed in range(given.seeds):
            alone = tenants(curve, None, window, seed, given.delays)
            for narrow in (ALONE, GROWING):
                seen = tenants(curve, narrow, window, seed, given.delays)
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


def main(given: Options) -> None:
    written = dict[str, list[Row]]()
    for part in given.parts:
        rows = written[part] = list[Row]()
        for row in MADE[part](given):
            rows.append(row)
            print(*row.values(), file=sys.stderr, flush=True)
        print("\n".join(["", *table_lines(list(rows[0]), [list(row.values()) for row in rows])]))
    write_json(given.json_file, written)


if __name__ == "__main__":
    run(Options, main)
