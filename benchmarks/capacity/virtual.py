"""A crowd on the real engine, scheduler and sessions, on a virtual clock: no wire, no processes.

    python -m benchmarks.capacity.virtual [--cells neuron:256:0.8:64,...] [--seeds 3]

Forwards take the profile's time and --late more. Drafts are the scripts of the other measurements,
and take the same time. Figures depend on no machine, so rules of the scheduler can be compared:
the same seed is the same crowd. The window is that of a stretched crowd: 0.6 seconds after its
coming, for 2.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Sequence
from itertools import count
from statistics import mean
from typing import NamedTuple

from benchmarks.capacity.parts import CALL_SECONDS, MOST_OUTPUT, Cell
from benchmarks.capacity.script import SKILLS, VOCABULARY, GrowingDraft, ScriptedTarget
from benchmarks.capacity.target import CHUNK, CURVES, NODES
from benchmarks.harness import command, table_lines
from inference.backends import Segment
from inference.backends.batch import Shape
from inference.backends.timed import TimeProfile
from inference.candidates import Nodes
from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.order import MOST_CREDIT, Decode
from inference.planner.profiling import emulated_target
from inference.proposer import Notice
from inference.sampling import SamplingParams
from inference.tree import IntArray

NOTICE = Notice(0.0, 0.0, 0, 0, 0)
"""Scripted drafts do not look at it."""


class Clock:
    """Virtual seconds."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class VirtualTarget(ScriptedTarget):
    """A scripted target whose forwards take a profile's time of a clock.

    late: seconds that each forward takes more.
    """

    def __init__(self, rows: int, profile: TimeProfile, clock: Clock, late: float) -> None:
        super().__init__(rows, 2048 + MOST_OUTPUT + NODES, CHUNK)
        self.widths = list[int]()
        self._profile, self._clock, self._late = profile, clock, late

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._profile.padded(rows, nodes)

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        shape = Shape.least(segments)
        self.widths.append(shape.nodes)
        self._clock.now += self._profile.seconds(shape.rows, shape.nodes, shape.slots) + self._late
        return super().choose(segments)


class Delays(NamedTuple):
    """What the profile does not tell, in seconds. forward: of each forward; link: of a message."""

    forward: float
    link: float


class User:
    """A session and its draft, which calls on a time line of its own.

    link: seconds of a message.
    """

    def __init__(self, engine: Engine, session: Session, draft: GrowingDraft, link: float) -> None:
        self.session = session
        self._engine, self._draft, self._link = engine, draft, link
        self._stream, self._numbers = engine.join(session), count()
        self._heard, self._free_at = session.length, 0.0
        self._way_up = deque[tuple[float, Nodes]]()
        self._way_down = deque[tuple[float, int]]()  # when it comes, and the length then

    def until(self, now: float) -> None:
        """What the draft does before this moment, and what of it arrives by then."""
        while self._free_at < now:
            self._hear()
            if self._draft.work(self._free_at):
                self._free_at += CALL_SECONDS
                nodes = self._draft.flush(self._free_at, self._numbers.__next__)
                if nodes is not None:
                    self._way_up.append((self._free_at + self._link, nodes))
            else:
                self._free_at = min(self._way_down[0][0], now) if self._way_down else now
        while self._way_up and self._way_up[0][0] <= now:
            self._engine.append(self.session, self._stream, self._way_up.popleft()[1])

    def told(self, now: float) -> None:
        """A forward has ended."""
        self._engine.acknowledge(self.session, self.session.length)
        self._way_down.append((now + self._link, self.session.length))

    def _hear(self) -> None:
        while self._way_down and self._way_down[0][0] <= self._free_at:
            at, length = self._way_down.popleft()
            tokens = self.session.tokens[self._heard : length]
            self._draft.hear(self._heard, tokens, at, NOTICE)
            self._heard = length


class Seen(NamedTuple):
    """A crowd, beside root-only forwards of the same sessions.

    total: tokens a second of all.  least: of the slowest user.  nodes: of a row in a forward.
    """

    total: float
    least: float
    nodes: float


def crowd(cell: Cell, settle: float, seconds: float, seed: int, delays: Delays) -> Seen:
    """A crowd in the window that begins `settle` virtual seconds after its coming."""
    clock, profile = Clock(), CURVES[cell.curve]
    model = VirtualTarget(cell.sessions, profile, clock, delays.forward)
    engine = Engine(
        model,
        sequence_length=cell.context + MOST_OUTPUT,
        max_tree_nodes=NODES,
        vocabulary=VOCABULARY,
        times=emulated_target(profile, cell.sessions, NODES),
        clock=clock,
    )
    users = [_user(engine, cell, 1000 * seed + at, delays.link) for at in range(cell.sessions)]
    for user in users:
        engine.decode(user.session, Decode(cell.context + MOST_OUTPUT, credit=MOST_CREDIT))
    _play(engine, users, clock, clock.now + settle)
    start, made = clock.now, len(model.widths)
    lengths = [user.session.length for user in users]
    _play(engine, users, clock, start + seconds)
    tokens = [user.session.length - length for user, length in zip(users, lengths, strict=True)]
    root_only = profile.seconds(cell.sessions, 1, cell.context + round(mean(tokens)))
    alone = (clock.now - start) / (root_only + delays.forward)
    return Seen(mean(tokens) / alone, min(tokens) / alone, mean(model.widths[made:]))


def _user(engine: Engine, cell: Cell, seed: int, link: float) -> User:
    prompt = random.Random(cell.context).choices(range(VOCABULARY), k=cell.context)  # noqa: S311
    params = SamplingParams(cell.temperature, seed=seed)
    session, opened = engine.open(prompt, params)
    engine.finish(opened)
    draft = GrowingDraft(SKILLS[cell.temperature], 0.0)
    draft.open(prompt, params)
    return User(engine, session, draft, link)


def _play(engine: Engine, users: Sequence[User], clock: Clock, until: float) -> None:
    while clock.now < until:
        for user in users:
            user.until(clock.now)
        engine.step()
        for user in users:
            user.told(clock.now)


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--cells", default="neuron:256:0.8:64,neuron:256:0:64")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settle", type=float, default=0.6, help="seconds before the window")
    parser.add_argument("--seconds", type=float, default=2.0, help="of the window")
    parser.add_argument("--late", type=float, default=0.003, help="seconds more of a forward")
    parser.add_argument("--link", type=float, default=0.004, help="seconds of a message")
    given = parser.parse_args()
    delays, rows = Delays(given.late, given.link), list[list[str]]()
    for name in given.cells.split(","):
        curve, context, heat, sessions = name.split(":")
        cell = Cell(curve, int(context), float(heat), int(sessions))
        for seed in range(given.seeds):
            seen = crowd(cell, given.settle, given.seconds, seed, delays)
            rows.append([name, f"{seed}", *(f"{figure:.2f}" for figure in seen)])
            print(*rows[-1], file=sys.stderr, flush=True)
    heads = ("cell", "seed", "of target-only", "slowest user", "nodes a row")
    print("\n".join(table_lines(heads, rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
