"""A target and its users on a virtual clock: the real engine, scheduler and sessions, drafts by
script, no wire and no processes. The same users give the same figures on any machine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from benchmarks.capacity.script import VOCABULARY, GrowingDraft, ScriptedTarget, Text
from inference.backends import Chosen, Segment
from inference.backends.batch import BatchShape
from inference.backends.timed import TimeProfile
from inference.engine.engine import Engine
from inference.order import MOST_CREDIT, Decode, End
from inference.planner.profiling import emulated_target
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.times import Times

NODES = 64
"""Nodes of one session in a forward, the root included."""

CHUNK = 256
"""Tokens of a prompt in one call."""

IDLE_SECONDS = 0.0005
"""Seconds of an engine that has nothing to do, before it looks again."""


class Delays(NamedTuple):
    """Times that the profile does not tell, in seconds.

    forward: of each forward.  link: of a message.
    work: of the engine itself before each look at its clock, of which a forward has five.
    every, pause: the machine stops for `pause` seconds at random moments, `every` seconds apart on
    average; 0: never. Two worlds with the same seed stop at the same moments.
    """

    forward: float
    link: float
    work: float = 0.0
    every: float = 0.0
    pause: float = 0.0


class Clock:
    """Virtual seconds.

    pauses: moments at which the machine stops, and for how long.
    work: seconds that pass before each look at it.
    """

    def __init__(self, pauses: Iterator[tuple[float, float]], work: float) -> None:
        self.now = 0.0
        self._pauses, self._work = pauses, work
        self._next = next(pauses, None)

    def __call__(self) -> float:
        self.now += self._work
        return self.now

    def works(self, seconds: float) -> None:
        """Work of so many seconds passes, and the pauses that begin within it."""
        self.now += seconds
        while self._next is not None and self._next[0] < self.now:
            self.now += self._next[1]
            self._next = next(self._pauses, None)


def pauses(delays: Delays, seed: int) -> Iterator[tuple[float, float]]:
    """Moments at which the machine stops, and for how long."""
    chance, at = random.Random(seed), 0.0  # noqa: S311
    while delays.every:
        at += chance.expovariate(1 / delays.every)
        yield at, delays.pause


class VirtualTarget(ScriptedTarget):
    """A scripted target whose forwards take a profile's time of a clock.

    late: seconds that each forward takes more.
    made: rows, nodes of each and seconds of each forward that chose tokens, as padded.
    """

    def __init__(
        self, rows: int, length: int, profile: TimeProfile, clock: Clock, late: float
    ) -> None:
        super().__init__(rows, length + NODES, CHUNK)
        self.made = list[tuple[int, int, float]]()
        self._profile, self._clock, self._late = profile, clock, late

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._profile.padded(rows, nodes)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        shape, began = BatchShape.least(segments), self._clock.now
        seconds = self._profile.seconds(shape.rows, shape.nodes, shape.slots) + self._late
        self._clock.works(seconds)
        if segments[0].pick.size:  # of a prompt's chunk nothing is chosen
            padded = self.padded(shape.rows, shape.nodes)
            self.made.append((len(segments), padded[1], self._clock.now - began))
        return super().choose(segments)


class Wish(NamedTuple):
    """Order of a user. call: seconds of a call of its draft, if it has one."""

    number: int  # the seed of its text
    prompt: Sequence[int]
    tokens: int
    temperature: float
    draft: GrowingDraft | None = None
    call: float = 0.0
    tenant: str = ""


class Came(NamedTuple):
    """Text that a user got. starts: when it came.  events: when tokens came, and how many."""

    starts: float
    events: list[tuple[float, int]]


class NotTheTargetsText(Exception):
    """A user's text is not the target's own: a fault that no figure may pass over."""


class User:
    """A session and its draft, which calls on a time line of its own. came: what it got, and when.

    link: seconds of a message.
    """

    def __init__(self, engine: Engine, wish: Wish, starts: float, link: float) -> None:
        self.wish, self.came = wish, Came(starts, [])
        self._engine, self._draft, self._link = engine, wish.draft, link
        params = SamplingParams(wish.temperature, seed=wish.number)
        self.session, self.opened = engine.open(wish.prompt, params, tenant=wish.tenant)
        if self._draft is not None:
            self._draft.open(wish.prompt, wish.number)
        self._stream, self._numbers = engine.join(self.session), count()
        self._told = self.session.length
        self._free_at = starts
        self._way_up = deque[tuple[float, Nodes]]()
        self._way_down = deque[tuple[float, int]]()  # when it comes, and the length then

    def order(self) -> None:
        """Let the target decode."""
        end = len(self.wish.prompt) + self.wish.tokens
        self._engine.decode(self.session, Decode(end, credit=MOST_CREDIT))

    def check(self) -> None:
        """Raises NotTheTargetsText unless all tokens so far are the target's own."""
        prompt, text = self.wish.prompt, Text(self.wish.prompt, self.wish.number)
        due = [text.at(place) for place in range(len(prompt), self.session.length)]
        if list(self.session.tokens[len(prompt) :]) != due:
            raise NotTheTargetsText(f"user {self.wish.number}")

    def until(self, now: float) -> None:
        """Let the draft work before this moment, and deliver what arrives by then."""
        if self._draft is None or self.session.end is not End.NOT:
            return
        while self._free_at < now:
            self._hear(self._draft)
            busy = self._draft.work()
            self._free_at += self.wish.call if busy else 0.0
            nodes = self._draft.flush(self._numbers.__next__)
            if nodes is not None:
                self._way_up.append((self._free_at + self._link, nodes))
            if not busy:
                self._free_at = min(self._way_down[0][0], now) if self._way_down else now
        while self._way_up and self._way_up[0][0] <= now:
            self._engine.append(self.session, self._stream, self._way_up.popleft()[1])

    def told(self, now: float) -> None:
        """A forward has ended."""
        length = self.session.length
        if length > self._told:
            self._engine.acknowledge(self.session, length)
            self._way_down.append((now + self._link, length))
            self.came.events.append((now + self._link, length - self._told))
            self._told = length

    def _hear(self, draft: GrowingDraft) -> None:
        while self._way_down and self._way_down[0][0] <= self._free_at:
            draft.hear(self._way_down.popleft()[1])


class World:
    """A target with so many rows for texts of `length` tokens, and its users."""

    def __init__(
        self, profile: TimeProfile, rows: int, length: int, delays: Delays, seed: int = 0
    ) -> None:
        self.clock = Clock(pauses(delays, seed), delays.work)
        self.model = VirtualTarget(rows, length, profile, self.clock, delays.forward)
        self.engine = Engine(
            self.model,
            sequence_length=length,
            max_tree_nodes=NODES,
            vocabulary=VOCABULARY,
            waiting=256,
            times=Times(emulated_target(profile, rows, NODES), measured=True),
            clock=self.clock,
        )
        self.link = delays.link
        self.users = list[User]()

    def stay(self, wishes: Sequence[Wish]) -> None:
        """Users who come together; their prompts are there when the first of them decodes."""
        for wish in wishes:
            self.users.append(User(self.engine, wish, self.clock.now, self.link))
            self.engine.finish(self.users[-1].opened)
        for user in self.users:
            user.order()

    def play(self, until: float) -> None:
        """Until this moment. Raises NotTheTargetsText."""
        while self.clock.now < until:
            self._step()
        for user in self.users:
            user.check()

    def visit(self, coming: Sequence[tuple[float, Wish]]) -> list[Came]:
        """Users who come at these moments and leave with their texts; returns what they got.

        Raises NotTheTargetsText.
        """
        left, gone = deque(coming), list[Came]()
        while left or self.users:
            while left and left[0][0] + self.link <= self.clock.now:
                starts, wish = left.popleft()
                user = User(self.engine, wish, starts, self.link)
                user.order()
                self.users.append(user)
            self._step()
            ended = [user for user in self.users if user.session.end is not End.NOT]
            for user in ended:
                user.check()
                self.engine.close(user.session)
                self.users.remove(user)
                gone.append(user.came)
        return gone

    def _step(self) -> None:
        for user in self.users:
            user.until(self.clock.now)
        if not self.engine.step():
            self.clock.now += IDLE_SECONDS
        for user in self.users:
            user.told(self.clock.now)


def random_prompt(seed: int, length: int) -> list[int]:
    """The prompt of a user."""
    return random.Random(seed).choices(range(VOCABULARY), k=length)  # noqa: S311
