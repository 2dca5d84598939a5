"""Share of texts that stay the same, to the token, in other orders of arrival or beside sessions.

    python -m benchmarks.equal_texts --dtype bfloat16 [--orders 20]

Every text is made by target-only in a session by itself: the reference. Then for each order

- ahead: a growing draft proposes across a link. The order fixes the round trip (0 to 300 ms) and
  what every call of the draft and every forward takes (half to twice its usual time). The clock is
  virtual and the models are real, so an order can be repeated and nothing waits.
- beside: target-only again, but up to four sessions share each forward. The order fixes who comes
  when.

Each text is made by a fresh engine, so that no keys of an earlier run are used again. In float32
all are equal, up to near-ties; in bfloat16 rounding depends on a forward's shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness import FileName, Flags, Folder, cpu_decoder, run
from benchmarks.regret.clock import VirtualClock
from benchmarks.regret.stage import BYTE_TIME, PROFILES, serve
from benchmarks.regret.texts import HELD_OUT, PROMPTS
from benchmarks.regret.virtual import Link, MeteredModel, VirtualServer, VirtualSession
from inference.backends import Model
from inference.backends.eager import EagerModel
from inference.decode import TargetSession, decode
from inference.draft_tuning import TUNING
from inference.drafters.draft import Draft
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.model.checkpoint import DTYPES
from inference.model.config import read_config
from inference.order import Decode, End
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.times import Times
from outrider.measure.figures import first_difference
from outrider.measure.sets import read_file
from outrider.models.directories import EMBEDDED
from outrider.models.loading import PREFILL_NODES
from outrider.options.groups import Precision

LENGTH = 1024
ROWS = 4
LONGEST_ROUND_TRIP = 0.3
APART = 24
"""Forwards between one session's coming and the next one's, at most."""


class Job(NamedTuple):
    """A text to be made. end: its length, prompt included."""

    prompt: tuple[int, ...]
    params: SamplingParams
    end: int


class Pair(NamedTuple):
    """The models, and ids that end a text."""

    target: Model
    draft: Model
    vocabulary: int
    stop_ids: frozenset[int]

    def order(self, job: Job) -> Decode:
        return Decode(job.end, self.stop_ids)

    def engine(self) -> Engine:
        return serve(self.target, self.vocabulary)


class Share(NamedTuple):
    """Texts that were made, and where each that differs left the reference."""

    texts: int
    differ_at: tuple[int, ...]

    def __str__(self) -> str:
        same = self.texts - len(self.differ_at)
        said = f"{same} of {self.texts} ({same / self.texts:.3f})"
        if not self.differ_at:
            return said
        return f"{said}, the others for {median(self.differ_at):g} tokens (median)"


def alone(pair: Pair, job: Job) -> tuple[int, ...]:
    """By target-only, in a session by itself."""
    return _text(job, pair, LocalSession(pair.engine()), [])


def ahead(pair: Pair, job: Job, order: int) -> tuple[int, ...]:
    """With a growing draft, in this order of arrival."""
    chance, clock = np.random.default_rng(order), VirtualClock()

    def spend(seconds: float) -> None:
        clock.advance(seconds * 2 ** chance.uniform(-1, 1))

    target = MeteredModel(pair.target, PROFILES.target, spend)
    draft = MeteredModel(pair.draft, PROFILES.here, spend)
    link = Link(chance.uniform(0, LONGEST_ROUND_TRIP), BYTE_TIME)
    times = PROFILES.target_times()
    engine = serve(target, pair.vocabulary, times=times, clock=clock.now)
    draft_times = Times(PROFILES.draft_times)
    target_times = Times(times)
    known = Knowledge(draft_times, target_times, read_acceptance(), link.round_trip)
    proposer = Draft(draft).proposer(0, known, Prices(battery=True), clock=clock.now)
    session = VirtualSession(VirtualServer(clock, engine), link)
    return _text(job, pair, session, [proposer], clock)


def _text(
    job: Job,
    pair: Pair,
    session: TargetSession,
    proposers: Sequence[Proposer],
    clock: VirtualClock | None = None,
) -> tuple[int, ...]:
    now = {} if clock is None else {"clock": clock.now}
    with closing(session):
        steps = decode(job.prompt, job.params, session, pair.order(job), proposers, **now)
        return tuple(token for step in steps for token in step.tokens)


def beside(pair: Pair, jobs: Sequence[Job], order: int) -> list[tuple[int, ...]]:
    """All of them by target-only, in forwards that they share; the order says who comes when."""
    chance, engine = np.random.default_rng(order), pair.engine()
    line = list(chance.permutation(len(jobs)))
    made: dict[int, tuple[int, ...]] = {}
    there: dict[int, _Reader] = {}
    wait = 0
    while line or there:
        if line and len(there) < ROWS and (wait <= 0 or not there):
            index = int(line.pop())
            there[index] = _Reader(engine, jobs[index], pair.order(jobs[index]))
            wait = int(chance.integers(APART))
        engine.step()
        wait -= 1
        for index, reader in list(there.items()):
            if reader.ended:
                made[index] = reader.close()
                del there[index]
    return [made[index] for index in range(len(jobs))]


class _Reader:
    """A session whose client has every token at once."""

    def __init__(self, engine: Engine, job: Job, order: Decode) -> None:
        self._engine, self._prompt = engine, len(job.prompt)
        self._session, _ = engine.open(job.prompt, job.params)
        engine.decode(self._session, order)

    @property
    def ended(self) -> bool:
        self._engine.acknowledge(self._session, self._session.length)
        return self._session.end is not End.NOT

    def close(self) -> tuple[int, ...]:
        text = tuple(self._session.tokens[self._prompt :])
        self._engine.close(self._session)
        return text


def share(made: Sequence[tuple[int, ...]], references: Sequence[tuple[int, ...]]) -> Share:
    """Count the texts that equal their references. Raises ValueError unless there are as many."""
    places = [first_difference(*both) for both in zip(made, references, strict=True)]
    return Share(len(made), tuple(place for place in places if place is not None))


def load_pair(target: Path, draft: Path, tokenizer: Tokenizer, dtype: torch.dtype) -> Pair:
    """Both models on the CPU."""

    def load(directory: Path, rows: int, room: int) -> EagerModel:
        decoder = cpu_decoder(directory, LENGTH, tokenizer.vocabulary, dtype)
        return EagerModel(decoder, rows=rows, capacity=LENGTH + room, max_nodes=PREFILL_NODES)

    stop_ids = read_config(target).stop_ids | tokenizer.end_ids
    return Pair(
        load(target, ROWS, 256), load(draft, 1, TUNING.room), tokenizer.vocabulary, stop_ids
    )


class Options(Flags):
    target: Folder = EMBEDDED / "target"
    draft: Folder = EMBEDDED / "draft"
    dtype: Precision = "bfloat16"
    file: FileName | None = None
    """of prompts, as outrider bench reads them"""
    each: int = 1
    """prompts of each kind"""
    tokens: int = 64
    """of a text, at most"""
    temperature: float = 0.0
    orders: int = 20
    first: int = 0
    """order, to go on with others"""
    threads: int = 1


def main(given: Options) -> None:
    torch.set_num_threads(given.threads)
    tokenizer = Tokenizer(given.target)
    asked = (
        [tokenizer.encode(one.turns[0], chat=True) for one in read_file(given.file, given.each)]
        if given.file
        else [tokenizer.encode(text) for text in (*PROMPTS, *HELD_OUT)]
    )
    params = [
        SamplingParams(given.temperature, seed=seed).on_the_wire() for seed in range(len(asked))
    ]
    jobs = [
        Job(tuple(ids), each, len(ids) + given.tokens)
        for ids, each in zip(asked, params, strict=True)
    ]
    pair = load_pair(given.target, given.draft, tokenizer, DTYPES[given.dtype])
    reference = [alone(pair, job) for job in jobs]
    drafted, batched = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for count, order in enumerate(range(given.first, given.first + given.orders), start=1):
        drafted += [ahead(pair, job, order) for job in jobs]
        batched += beside(pair, jobs, order)
        print(
            f"{count} orders; equal to target-only: ahead {share(drafted, count * reference)}; "
            f"beside {share(batched, count * reference)}",
            flush=True,
        )


if __name__ == "__main__":
    run(Options, main)
