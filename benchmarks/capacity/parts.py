"""The measurements: a crowd that stays, users who come and go, and a tenant that wants everything.

All figures are in emulated times: seconds of this machine divided by how much slower it ran.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.capacity.client import ALONE, GROWING, ROUNDS, WIDE, Came, User
from benchmarks.capacity.processes import Fleet, Played, fleet
from benchmarks.capacity.target import CHUNK, CURVES

CALL_SECONDS = 0.0105
"""Of a call of a user's draft, as the study's laptop takes."""

SETTLE_SECONDS, WARM_UP_SECONDS, LEAVE_SECONDS = 3.0, 6.0, 0.2
"""From the users' coming to the window; of what is played before; from the window to their going.
"""

WANTED = (12, 40)
"""Tokens a second of each user."""

SLOT_BYTES = {"neuron": 131_072, "cpu": 28_672, "steep": 0}
"""Keys and values of one token in 16 bits: 32 layers of 8 heads of 128; 28 of 2 of 128."""

MOST_OUTPUT = 1024
"""Tokens that a session of a crowd may come to in its window."""

LOAD, ARRIVING_TOKENS, ARRIVING_CONTEXT = 0.7, 48, 256
"""Part of the capacity that users who come and go ask for; tokens of each, and of its prompt."""

NARROW, TENANTS_CONTEXT = 3, 16
"""Tenants beside the wide one; short prompts, for every key has to prefill its own."""

_numbers = count(1)


class Cell(NamedTuple):
    """A crowd."""

    curve: str
    context: int
    temperature: float
    sessions: int


class Crowd(NamedTuple):
    """What an arm made of a crowd: medians over rounds.

    rate: tokens a second of all; rates: in each round.  of_alone: times target-only's.  least: the
    slowest user, of target-only's median user.  served: users with the rates of WANTED.
    forward_ms: emulated.  nodes: padded, of a row in a forward.  cpu_ms: of the target's process,
    a forward.  late: part of the emulated time by which forwards took longer.
    """

    cell: Cell
    arm: str
    rate: float
    rates: list[float]
    of_alone: float
    least: float
    served: tuple[float, ...]
    forward_ms: float
    nodes: float
    cpu_ms: float
    late: float
    rss_mib: float
    kv_gib: float
    problems: list[str]


class Visits(NamedTuple):
    """What users who come and go saw, in milliseconds. ttft: until the first token.  gap: between
    messages with tokens.  token: between tokens, of which several may come in a message.  tpot:
    mean of a user's tokens after the first.
    """

    temperature: float
    arm: str
    users: int
    ttft_p50: float
    ttft_p99: float
    gap_p50: float
    gap_p99: float
    token_p99: float
    tpot_p50: float
    tpot_p99: float
    problems: list[str]


class Tenancy(NamedTuple):
    """Rates of tenants beside a wide one, of the same tenants' root-only rates: the slowest
    narrow one, and the wide one; medians over rounds.
    """

    curve: str
    narrow_arm: str
    narrow_rate: float
    least_narrow: float
    wide: float
    nodes: float
    problems: list[str]


def rate(came: Came, window: tuple[float, float]) -> float:
    """Tokens a second between the first and the last event of the window."""
    inside = [event for event in came.events if window[0] <= event[0] <= window[1]]
    if len(inside) < 2:
        return 0.0
    return sum(tokens for _, tokens in inside[1:]) / (inside[-1][0] - inside[0][0])


class Stay(NamedTuple):
    """A crowd of an arm, once: rates of its users and of all, and what it cost."""

    rates: list[float]
    total: float
    played: Played


def stay(
    place: Fleet,
    cell: Cell,
    arms: Sequence[str],
    seconds: float,
    slower: float,
    tokens: Sequence[str] = (),
) -> Stay:
    """Users of these arms come together, are watched and leave. tokens: files of their keys."""
    starts = time.monotonic() + 0.5
    window = (starts + SETTLE_SECONDS, starts + SETTLE_SECONDS + seconds)
    users = [
        User(
            number=next(_numbers),
            address=place.address,
            arm=arm,
            temperature=cell.temperature,
            context=cell.context,
            prompt=cell.context,
            tokens=MOST_OUTPUT,
            starts=starts,
            until=window[1] + LEAVE_SECONDS,
            call_seconds=CALL_SECONDS * slower,
            token_file=tokens[index] if tokens else "",
        )
        for index, arm in enumerate(arms)
    ]
    played = place.play(users, window)
    made = sum(n for one in played.came for at, n in one.events if window[0] <= at <= window[1])
    rates = [slower * rate(one, window) for one in played.came]
    return Stay(rates, slower * made / seconds, played)


def crowd(cell: Cell, rounds: int, seconds: float, slower: float) -> Iterator[Crowd]:
    """Every arm on one crowd, in turns."""
    arms = (ALONE, GROWING, ROUNDS)
    stays: dict[str, list[Stay]] = {arm: [] for arm in arms}
    length = cell.context + MOST_OUTPUT
    with fleet(cell.curve, slower, cell.sessions, length) as place:
        stay(place, cell, [ALONE], 0.5, slower)  # the prompt's keys are there from now on
        stay(place, cell, [GROWING] * cell.sessions, WARM_UP_SECONDS, slower)
        for _ in range(rounds):
            for arm in arms:
                stays[arm].append(stay(place, cell, [arm] * cell.sessions, seconds, slower))
    for arm in arms:
        yield _crowd(cell, arm, stays[arm], stays[ALONE], slower)


def _crowd(
    cell: Cell, arm: str, stays: Sequence[Stay], alone: Sequence[Stay], slower: float
) -> Crowd:
    done = [one.played for one in stays]
    forwards = [max(one.grown("decoding"), 1.0) for one in done]
    both = list(zip(stays, alone, strict=True))
    slots = cell.sessions * (cell.context + MOST_OUTPUT)
    return Crowd(
        cell,
        arm,
        median(one.total for one in stays),
        [one.total for one in stays],
        median(one.total / max(base.total, 1e-9) for one, base in both),
        median(min(one.rates) / max(median(base.rates), 1e-9) for one, base in both),
        tuple(median(sum(r >= least for r in one.rates) for one in stays) for least in WANTED),
        median(
            1e3 * one.grown("emulated") / slower / max(one.grown("forwards"), 1.0) for one in done
        ),
        median(one.grown("nodes") / max(one.grown("rows"), 1.0) for one in done),
        median(1e3 * one.grown("cpu") / n for one, n in zip(done, forwards, strict=True)),
        median(one.grown("late") / max(one.grown("emulated"), 1e-9) for one in done),
        done[-1].after["rss_mib"],
        slots * SLOT_BYTES[cell.curve] / 2**30,
        [problem for one in done for problem in one.problems],
    )


def arrivals(
    temperature: float, users: int, rounds: int, slower: float, rows: int
) -> Iterator[Visits]:
    """Users who come by chance, ask for a few tokens and go; both arms at the same moments."""
    each, context = arriving_seconds(rows), ARRIVING_CONTEXT
    came: dict[str, list[Came]] = {ALONE: [], GROWING: []}
    with fleet("neuron", slower, rows, 2 * context) as place:
        for turn in range(rounds):
            for arm in came:
                played = _visit(place, arm, temperature, users, each * slower / LOAD, turn, slower)
                came[arm] += played.came
    for arm, seen in came.items():
        yield visits_of(temperature, arm, seen, slower)


def arriving_seconds(rows: int) -> float:
    """What a user who comes and goes takes of the Neuron-like target, in seconds."""
    profile, context = CURVES["neuron"], ARRIVING_CONTEXT
    share = profile.seconds(rows, 1, context + ARRIVING_TOKENS) / rows
    return profile.seconds(1, CHUNK, context) + ARRIVING_TOKENS * share


def _visit(
    place: Fleet,
    arm: str,
    temperature: float,
    users: int,
    every: float,
    seed: int,
    slower: float,
) -> Played:
    chance, starts, coming = random.Random(seed), time.monotonic() + 1.0, list[User]()  # noqa: S311
    for _ in range(users):
        starts += chance.expovariate(1 / every)
        number = next(_numbers)
        coming.append(
            User(
                number,
                place.address,
                arm,
                temperature,
                ARRIVING_CONTEXT,
                number,
                ARRIVING_TOKENS,
                starts,
                starts + 3600.0,
                CALL_SECONDS * slower,
            )
        )
    return place.play(coming, (coming[0].starts, coming[-1].starts))


def visits_of(temperature: float, arm: str, came: Sequence[Came], slower: float) -> Visits:
    """What users who came and went saw, in times that are `slower` times as long."""
    heard = [one for one in came if len(one.events) > 1]
    first = [1e3 * (one.events[0][0] - one.starts) / slower for one in heard]
    gaps = [
        1e3 * (after[0] - before[0]) / slower
        for one in heard
        for before, after in pairwise(one.events)
    ]
    together = sum(n - 1 for one in heard for _, n in one.events)
    each = [
        1e3 * (one.events[-1][0] - one.events[0][0]) / slower / sum(n for _, n in one.events[1:])
        for one in heard
    ]
    return Visits(
        temperature,
        arm,
        len(came),
        median(first),
        _p99(first),
        median(gaps),
        _p99(gaps),
        _p99([*gaps, *[0.0] * together]),
        median(each),
        _p99(each),
        [one.problem for one in came if one.problem],
    )


def _p99(values: Sequence[float]) -> float:
    """The value that 99 % do not exceed."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def tenancy(curve: str) -> Cell:
    """The wide tenant and the narrow ones."""
    return Cell(curve, TENANTS_CONTEXT, 0.0, 1 + NARROW)


def tenants(curve: str, rounds: int, seconds: float, slower: float) -> Iterator[Tenancy]:
    """A wide tenant beside narrow ones, who draft honestly or not at all."""
    cell = tenancy(curve)
    with tempfile.TemporaryDirectory() as folder:
        keys, tokens = keys_file(Path(folder), cell.sessions)
        more = f"--keys_file={keys}"
        with fleet(curve, slower, cell.sessions, cell.context + MOST_OUTPUT, more) as place:
            arms = {
                "root-only": [ALONE] * (1 + NARROW),
                ALONE: [WIDE, *[ALONE] * NARROW],
                GROWING: [WIDE, *[GROWING] * NARROW],
            }
            stay(place, cell, arms[ALONE], WARM_UP_SECONDS, slower, tokens)
            stays: dict[str, list[Stay]] = {name: [] for name in arms}
            for _ in range(rounds):
                for name, users in arms.items():
                    stays[name].append(stay(place, cell, users, seconds, slower, tokens))
    for narrow in (ALONE, GROWING):
        yield _tenancy(curve, narrow, stays[narrow], stays["root-only"])


def _tenancy(curve: str, narrow: str, stays: Sequence[Stay], alone: Sequence[Stay]) -> Tenancy:
    shares = [
        [mine / max(own, 1e-9) for mine, own in zip(one.rates, base.rates, strict=True)]
        for one, base in zip(stays, alone, strict=True)
    ]
    wide, *others = [median(share) for share in zip(*shares, strict=True)]
    return Tenancy(
        curve,
        narrow,
        median(median(one.rates[1:]) for one in stays),
        min(others),
        wide,
        median(one.played.grown("nodes") / max(one.played.grown("rows"), 1.0) for one in stays),
        [problem for one in (*stays, *alone) for problem in one.played.problems],
    )


def keys_file(folder: Path, count: int) -> tuple[Path, list[str]]:
    """Keys for so many tenants, and a file with the token of each."""
    entries, files = list[dict[str, str]](), list[str]()
    for index in range(count):
        name = f"tenant-{index}"
        file = folder / name
        file.touch(mode=0o600)
        file.write_text(f"token-of-{name}")
        digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
        entries.append({"name": name, "token_sha256": digest})
        files.append(str(file))
    keys = folder / "keys.json"
    keys.touch(mode=0o600)
    keys.write_text(json.dumps({"keys": entries}))
    return keys, files
