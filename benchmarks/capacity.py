"""How many users one target sustains: batched forwards against one session at a time, on emulated devices.

    nice -n -10 python -m benchmarks.capacity --emulate llama-3.1-8b-trn1.2xlarge-measured --emulate llama-3.1-8b-trn1.2xlarge-roofline

Every user drafts a tree of 16 nodes, asks, and thinks for --think_ms (draft and round trip) before asking again. Sustained is the
largest number of users who each get at least 90 % of a lonely user's tokens a second. The engine is asked in process: what the wire
costs is not part of this. All figures are EMULATION: a small model chooses and each forward takes what a profile says
(inference/backends/timed.py). A probe is rejected when the small model alone took longer than that in more than 1 % of the forwards,
or when forwards ended late by more than 5 % in all, as they do on a busy machine.

What the profile allows: n users are served in g forwards a round, of b = ceil(n / g) rows. Nobody's round can be shorter than
think + t(b), nor than g * t(b), so n are sustained only if some g has max(think + t(b), g * t(b)) <= (think + t(1)) / 0.9,
where t(b) is the profile's time for b rows of 16 nodes; an engine that cuts trees may come to more. One at a time: n * t(1) <= (think + t(1)) / 0.9.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.scripted import Text, say_texts
from benchmarks.users import NODES, Alarm, EngineSeat, QueueSeat, Seat, User, running
from inference.backends import Model
from inference.backends.timed import TimedModel, TimeProfile, find_profile, profile_names
from inference.engine import Engine
from outrider.models import find_checkpoint, load_model
from outrider.options import Options

CONTEXT = 256
"""Cache slots that a forward reads: texts stay within them."""

TEXT = CONTEXT - 2 * NODES
SHARE = 0.9
LATE, OVERRUNS = 0.05, 0.01
ATTEMPTS = 3
WARM_UP = 3.0
"""Seconds in which the engine learns what forwards cost and how long users think."""


class Probe(NamedTuple):
    """What so many users got. tokens, rounds: a second and user; slowest: tokens of the user who got fewest; rows: of a forward, on average."""

    users: int
    tokens: float
    rounds: float
    slowest: float
    rows: float
    late: float  # share of the emulated time
    overruns: float  # share of the forwards


class Study:
    """Probes of one profile. `small` is the model that chooses, `texts` what it says."""

    def __init__(
        self,
        small: Model,
        texts: Sequence[Text],
        vocabulary: int,
        profile: TimeProfile,
        think: float,
        seconds: float,
    ) -> None:
        self._small, self._texts, self._vocabulary = small, texts, vocabulary
        self._profile, self._think, self._seconds = profile, think, seconds

    def batched(self, users: int) -> Probe:
        """All of them on one engine."""
        model = TimedModel(self._small, self._profile)
        engine = Engine(
            model, sequence_length=CONTEXT, max_tree_nodes=NODES, vocabulary=self._vocabulary
        )
        with running(engine):
            seats = [EngineSeat(engine, self._prompt(user)) for user in range(users)]
            for seat in seats:
                seat.opened.result()
            return self._measure(seats, model)

    def one_at_a_time(self, users: int) -> Probe:
        """In the order of asking."""
        model = TimedModel(self._small, self._profile)
        with ThreadPoolExecutor(1) as queue:
            seats = [QueueSeat(queue, model, user, self._prompt(user)) for user in range(users)]
            return self._measure(seats, model)

    def allowed(self, users: int) -> float:
        """Rounds a second and user that the profile allows with batching; see above."""
        rounds = []
        for forwards in range(1, users + 1):
            each = self._profile.seconds(-(-users // forwards), NODES, CONTEXT)
            rounds.append(1 / max(self._think + each, forwards * each))
        return max(rounds)

    def allowed_alone(self, users: int) -> float:
        """The same, one at a time."""
        each = self._profile.seconds(1, NODES, CONTEXT)
        return 1 / max(self._think + each, users * each)

    def _prompt(self, user: int) -> list[int]:
        text = self._texts[user % len(self._texts)]
        return text.tokens[: text.prompt]

    def _measure(self, seats: Sequence[Seat], model: TimedModel) -> Probe:
        chance = random.Random(len(seats))  # noqa: S311
        with Alarm() as alarm:
            texts = [self._texts[user % len(self._texts)] for user in range(len(seats))]
            users = [
                User(seat, texts[turn], self._vocabulary, turn, alarm, self._think)
                for turn, seat in enumerate(seats)
            ]
            for user in users:
                user.begin(chance.uniform(0, self._think))
            time.sleep(WARM_UP)
            since = time.perf_counter()
            forwards, overruns, emulated, late = (
                model.forwards,
                model.overruns,
                model.emulated_seconds,
                model.late_seconds,
            )
            time.sleep(self._seconds)
            elapsed = time.perf_counter() - since
        forwards, overruns = model.forwards - forwards, model.overruns - overruns
        emulated, late = model.emulated_seconds - emulated, model.late_seconds - late
        tokens = [user.tokens_a_second(since) for user in users]
        rounds = statistics.mean(user.rounds_a_second(since) for user in users)
        rows = rounds * len(users) * elapsed / forwards
        return Probe(
            len(users),
            statistics.mean(tokens),
            rounds,
            min(tokens),
            rows,
            late / emulated,
            overruns / forwards,
        )


def load_small(rows: int) -> tuple[Model, list[Text], int]:
    """The embedded draft, texts of its own, and its vocabulary."""
    options = Options(device="cpu", threads=1)
    checkpoint = find_checkpoint(options, "draft")
    model = load_model(
        options, checkpoint, rows=rows, sequence_length=CONTEXT, spare=NODES, max_nodes=NODES
    )
    vocabulary = checkpoint.tokenizer.vocabulary
    prompts = [
        checkpoint.tokenizer.encode(f"def {name}(")
        for name in ("read", "write", "open", "close", "parse", "main", "test", "run")
    ]
    return model, say_texts(model, prompts, TEXT, vocabulary), vocabulary


def probe(measure: Callable[[int], Probe], users: int) -> Probe:
    """Made again when the emulation did not keep its times; ends the program when it never did."""
    for _ in range(ATTEMPTS):
        made = measure(users)
        each = f"{made.tokens:5.2f} tokens/s ({made.slowest:5.2f} the slowest), {made.rounds:4.2f} rounds/s each"
        print(
            f"  {measure.__name__:13s} {users:3d} users: {each}; late {made.late:.1%}, overruns {made.overruns:.1%}",
            flush=True,
        )
        if made.late <= LATE and made.overruns <= OVERRUNS:
            return made
    sys.exit(f"rejected {ATTEMPTS} times: this machine is too busy to emulate {users} users")


def sustained(holds: Callable[[int], bool], most: int, within: int = 16) -> int:
    """The largest number of users, up to `most` and within one in so many, for whom it holds; one is taken for granted."""
    enough, short = 1, most + 1
    while short - enough > max(1, enough // within):
        middle = (enough + short) // 2
        if holds(middle):
            enough = middle
        else:
            short = middle
    return enough


def study(one: Study, rows: int) -> dict[str, object]:
    """Measured and allowed numbers of users of one profile, with every probe."""
    probes: dict[str, list[Probe]] = {}
    found: dict[str, object] = {}
    for measure, allowed in ((one.one_at_a_time, one.allowed_alone), (one.batched, one.allowed)):
        made = probes[measure.__name__] = [probe(measure, 1)]
        most = max(users for users in range(1, rows + 1) if allowed(users) >= SHARE * allowed(1))

        def holds(
            users: int, measure: Callable[[int], Probe] = measure, made: list[Probe] = made
        ) -> bool:
            made.append(probe(measure, users))
            return made[-1].tokens >= SHARE * made[0].tokens

        users = sustained(holds, min(rows, most + most // 8 + 1))
        print(
            f"  {measure.__name__}: {users} users sustained, {most} allowed ({users / most:.0%})",
            flush=True,
        )
        found[measure.__name__] = {"sustained": users, "allowed": most}
    return found | {
        "probes": {name: [made._asdict() for made in all_made] for name, all_made in probes.items()}
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--emulate",
        action="append",
        metavar="PROFILE",
        help="default: both bundled profiles, which are shown together",
    )
    parser.add_argument(
        "--think_ms",
        type=float,
        default=100.0,
        help="between an answer and the next request (default: %(default)g)",
    )
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="of each probe (default: %(default)g)"
    )
    parser.add_argument(
        "--rows", type=int, default=112, help="users at most (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    small, texts, vocabulary = load_small(given.rows)
    figures: dict[str, object] = {"think_ms": given.think_ms, "nodes": NODES, "share": SHARE}
    for name in given.emulate or profile_names():
        profile = find_profile(name)
        label = profile.label("outrider-embedded-draft")
        print(f"{label}; think {given.think_ms:g} ms", flush=True)
        figures[label] = study(
            Study(small, texts, vocabulary, profile, given.think_ms / 1e3, given.seconds),
            given.rows,
        )
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
