"""How many users one target sustains: batched forwards against one session at a time, on emulated devices.

    nice -n -10 python -m benchmarks.capacity --emulate llama-3.1-8b-trn1.2xlarge-measured --emulate llama-3.1-8b-trn1.2xlarge-roofline

Every user drafts a tree of 16 nodes, asks, and thinks for --think_ms (draft and round trip) before asking again. Sustained is the
largest number of users who each get at least 90 % of a lonely user's tokens a second. The engine is asked in process: what the wire
costs is not part of this. All figures are EMULATION: a small model chooses and each forward takes what a profile says
(inference/backends/timed.py). A probe whose forwards were late by more than 2 % in all, by overruns of the small model or by a busy
machine, is made again, and in the end rejected.

What the profile allows: n users are served in g forwards a round, of b = ceil(n / g) rows. Nobody's round can be shorter than
think + t(b), nor than g * t(b), so n are sustained only if some g has max(think + t(b), g * t(b)) <= (think + t(1)) / 0.9,
where t(b) is the profile's time for b rows of 16 nodes. One at a time: n * t(1) <= (think + t(1)) / 0.9.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.scripted import ScriptedDraft
from inference.accept import accept_match
from inference.backends import Model
from inference.backends.timed import TimedModel, TimeProfile, find_profile
from inference.engine import Engine
from inference.sampling import SamplingParams
from inference.sequence import ModelSequence
from inference.session import Answer
from inference.tree import TokenTree
from outrider.models import find_checkpoint, load_model
from outrider.options import Options

NODES, CONTEXT = 16, 256
"""Nodes of every tree, and cache slots that a forward reads: texts stay within them."""

TEXT = CONTEXT - 2 * NODES
SHARE = 0.9
LATE = 0.02
ATTEMPTS = 3
WARM_UP = 2.0
"""Seconds in which the engine learns what forwards cost and how long users think."""


class Text(NamedTuple):
    """A prompt of so many tokens and what the small model says after it."""

    tokens: list[int]
    prompt: int


class Seat(Protocol):
    """One user's place at a target."""

    @property
    def root(self) -> int: ...

    def ask(self, tree: TokenTree) -> Future[Answer]: ...

    def rewind(self, length: int) -> None:
        """Take back all but the first `length` tokens."""
        ...


class EngineSeat:
    """A session of an engine that batches."""

    def __init__(self, engine: Engine, prompt: Sequence[int]) -> None:
        self._engine = engine
        self._session, self.opened = engine.open(prompt, SamplingParams())

    @property
    def root(self) -> int:
        return self._session.root

    def ask(self, tree: TokenTree) -> Future[Answer]:
        return self._engine.verify(self._session, tree)

    def rewind(self, length: int) -> None:
        self._engine.rewind(self._session, length)


class QueueSeat:
    """A sequence of a target that serves one tree after the other, on the thread of `queue`."""

    def __init__(self, queue: Executor, model: Model, row: int, prompt: Sequence[int]) -> None:
        self._queue, self._model, self._row = queue, model, row
        self._sequence = ModelSequence(model, row, SamplingParams())
        self._sequence.extend(prompt[:-1])
        self.root = prompt[-1]

    def ask(self, tree: TokenTree) -> Future[Answer]:
        return self._queue.submit(self._verify, tree)

    def rewind(self, length: int) -> None:
        slots = self._sequence.slots
        slots.trim(length - 1)
        self._sequence = ModelSequence(self._model, self._row, SamplingParams(), slots)

    def _verify(self, tree: TokenTree) -> Answer:
        verdict = accept_match(tree, self._sequence.choose(tree))
        self._sequence.commit(tree, verdict.path)
        self.root = verdict.next_token
        return Answer(verdict, 0.0, 0.0, NODES)


class Alarm:
    """Calls functions later, on a thread of its own that ends with the context."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers, self._changed, self._ended = count(), threading.Condition(), False
        self._thread = threading.Thread(target=self._ring)

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._calls, (time.perf_counter() + seconds, next(self._numbers), call))
            self._changed.notify()

    def _ring(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._ended:
                left = self._calls[0][0] - time.perf_counter() if self._calls else None
                if left is not None and left <= 0:
                    return heapq.heappop(self._calls)[2]
                self._changed.wait(left)
        return None

    def __enter__(self) -> Alarm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()


class User:
    """Thinks, asks and waits for the answer, over and over."""

    def __init__(self, seat: Seat, text: Text, vocabulary: int, turn: int, alarm: Alarm, think: float) -> None:
        self._seat, self._prompt, self._alarm, self._think = seat, text.prompt, alarm, think
        self._draft = ScriptedDraft(text.tokens, text.prompt, vocabulary, turn)
        self._budget = NODES
        self._answers: list[tuple[float, int]] = []  # when, and tokens

    def begin(self, seconds: float) -> None:
        self._alarm.after(seconds, self._ask)

    def tokens_a_second(self, since: float) -> float:
        """Of the rounds that began and ended after this moment."""
        answers = [answer for answer in self._answers if answer[0] >= since]
        return sum(tokens for _, tokens in answers[1:]) / (answers[-1][0] - answers[0][0])

    def rounds_a_second(self, since: float) -> float:
        times = [when for when, _ in self._answers if when >= since]
        return (len(times) - 1) / (times[-1] - times[0])

    def _ask(self) -> None:
        if self._draft.at_end:
            self._seat.rewind(self._prompt)
            self._draft.restart()
        tree = self._draft.draft(self._seat.root, min(self._budget, NODES))
        self._seat.ask(tree).add_done_callback(lambda done: done.exception() or self._answered(done.result()))

    def _answered(self, answer: Answer) -> None:
        self._draft.commit(answer.verdict)
        self._budget = answer.budget
        self._answers.append((time.perf_counter(), len(answer.verdict.path) + 1))
        self._alarm.after(self._think, self._ask)


class Probe(NamedTuple):
    """What so many users got. tokens, rounds: a second and user; slowest: tokens of the user who got fewest."""

    users: int
    tokens: float
    rounds: float
    slowest: float
    late: float  # share of the emulated time
    overruns: float  # share of the forwards


class Study:
    """Probes of one profile. `small` is the model that chooses, `texts` what it says."""

    def __init__(self, small: Model, texts: Sequence[Text], vocabulary: int, profile: TimeProfile, think: float, seconds: float) -> None:
        self._small, self._texts, self._vocabulary = small, texts, vocabulary
        self._profile, self._think, self._seconds = profile, think, seconds

    def batched(self, users: int) -> Probe:
        """All of them on one engine."""
        model = TimedModel(self._small, self._profile)
        engine = Engine(model, sequence_length=CONTEXT, max_tree_nodes=NODES, vocabulary=self._vocabulary)
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
            users = [User(seat, texts[turn], self._vocabulary, turn, alarm, self._think) for turn, seat in enumerate(seats)]
            for user in users:
                user.begin(chance.uniform(0, self._think))
            time.sleep(WARM_UP)
            since = time.perf_counter()
            forwards, overruns, emulated, late = model.forwards, model.overruns, model.emulated_seconds, model.late_seconds
            time.sleep(self._seconds)
        forwards, overruns = model.forwards - forwards, model.overruns - overruns
        emulated, late = model.emulated_seconds - emulated, model.late_seconds - late
        tokens = [user.tokens_a_second(since) for user in users]
        rounds = statistics.mean(user.rounds_a_second(since) for user in users)
        return Probe(len(users), statistics.mean(tokens), rounds, min(tokens), late / emulated, overruns / forwards)


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """The engine on a thread of its own."""
    stopped = threading.Event()
    thread = threading.Thread(target=engine.run, args=(stopped,))
    thread.start()
    try:
        yield
    finally:
        engine.stop(stopped)
        thread.join()


def say_texts(small: Model, prompts: Sequence[list[int]], vocabulary: int) -> list[Text]:
    """What the small model says alone, greedily."""
    engine = Engine(small, sequence_length=CONTEXT, max_tree_nodes=NODES, vocabulary=vocabulary)
    said: list[list[int]] = [list(prompt) for prompt in prompts]
    futures = []
    for tokens in said:
        session, opened = engine.open(tokens, SamplingParams())
        engine.finish(opened)

        def hear(answer: Answer, last: bool, tokens: list[int] = tokens) -> None:
            tokens.append(answer.verdict.next_token)

        futures.append(engine.generate(session, TEXT - len(tokens), frozenset(), hear))
    for future in futures:
        engine.finish(future)
    return [Text(tokens, len(prompt)) for tokens, prompt in zip(said, prompts, strict=True)]


def load_small(rows: int) -> tuple[Model, list[Text], int]:
    """The embedded draft, texts of its own, and its vocabulary."""
    options = Options(device="cpu", threads=1)
    checkpoint = find_checkpoint(options, "draft")
    model = load_model(options, checkpoint, rows=rows, sequence_length=CONTEXT, spare=NODES, max_nodes=NODES)
    vocabulary = checkpoint.tokenizer.vocabulary
    prompts = [checkpoint.tokenizer.encode(f"def {name}(") for name in ("read", "write", "open", "close", "parse", "main", "test", "run")]
    return model, say_texts(model, prompts, vocabulary), vocabulary


def probe(measure: Callable[[int], Probe], users: int) -> Probe:
    """Made again when the emulation was late; raises SystemExit when it always was."""
    for _ in range(ATTEMPTS):
        made = measure(users)
        print(f"  {measure.__name__:13s} {made.users:3d} users: {made.tokens:5.2f} tokens/s ({made.slowest:5.2f} the slowest), "
              f"{made.rounds:4.2f} rounds/s each; late {made.late:.1%}, overruns {made.overruns:.1%}", flush=True)
        if made.late <= LATE:
            return made
    sys.exit(f"rejected: the emulation of {users} users was late by more than {LATE:.0%} {ATTEMPTS} times; this machine is too busy")
