"""Drafting that adapts: what is known of this machine, the link and the target, put together for each text."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from grpc_comm.client import Connection
from inference.acceptance import AcceptanceModel, read_acceptance, write_acceptance
from inference.backends import Model
from inference.backends.together import together
from inference.cache_directory import cache_directory
from inference.cost import Rates
from inference.drafters.adaptive import MOST_RANKED, AdaptiveDrafter
from inference.errors import InvalidRequest
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY, Forecast
from inference.model.checkpoint import fingerprint
from inference.navigator import Course, Navigator
from inference.objective import Terms, Wish, price_words
from inference.pilot import Knowledge, Pilot
from inference.times import DraftTimes, TargetTimes
from outrider.calibrate import link_times, probe_link
from outrider.completion import Completion, Request, Show, speculate_adaptive
from outrider.fused import CLASSIC
from outrider.models import PREFILL_NODES, Checkpoint, load_model
from outrider.options import Options
from outrider.profiles import say, user_profiles
from outrider.report import silent
from outrider.wishes import fallback_note, read_terms, read_wish

Complete = Callable[[Request, Show, threading.Event], Completion]


@contextmanager
def adapting(
    options: Options,
    checkpoint: Checkpoint,
    target: Connection,
    rows: int,
    length: int,
    rates: Rates | None,
) -> Iterator[Complete]:
    """Completes requests as the options wish; what was learned is kept at the end."""
    wish = read_wish(options, rates)
    note = fallback_note(options, rates, wish)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
    terms = read_terms(options, rates, wish)
    if terms is not None and not wish.speed_alone:
        terms.tariff(wish.objective)  # before anything is loaded: whether it can be computed
    aims = Aims(wish, terms, options.architecture == "auto", not options.no_bets, options.explain)
    model = load_model(
        options,
        checkpoint,
        rows=rows,
        sequence_length=length,
        spare=MOST_RANKED,
        max_nodes=PREFILL_NODES,
    )
    profile = user_profiles().draft(checkpoint, model, length)
    learned = learned_file(fingerprint(checkpoint.directory), target.description.model_fingerprint)
    pool = AdaptivePool(model, profile, target, aims, learned)

    def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
        with pool.drafter() as (drafter, navigator):
            tell = (
                partial(pool.teller.tell, streamed=show is not silent)
                if navigator.tell is not None
                else None
            )
            return speculate_adaptive(
                request,
                drafter,
                target.verifier(),
                navigator,
                checkpoint.tokenizer,
                show,
                cancelled,
                tell=tell,
            )

    try:
        yield complete
    finally:
        pool.keep()


@dataclass(frozen=True)
class Aims:
    """What the user wants of every text of a run. terms: None where nothing is priced."""

    wish: Wish
    terms: Terms | None
    auto: bool  # the target may go on alone, or with its own draft
    bets: bool
    explain: bool


SPEED_HERE = Aims(Wish(), None, auto=False, bets=True, explain=False)
"""Speed alone, always drafted on this machine."""


@dataclass
class _Row:
    """A row of the draft, what is known there, and in how many rounds it was learned."""

    index: int
    known: Knowledge
    rounds: int = 0


class AdaptivePool:
    """Adaptive drafters on the rows of a draft model, against one target. What a row learned in one text serves its next; all begin alike.

    learned: the file of what earlier runs learned; None to begin with the shipped prior and to keep nothing.
    """

    def __init__(
        self,
        model: Model,
        profile: dict[int, float],
        target: Connection,
        aims: Aims,
        learned: Path | None,
    ) -> None:
        self._model, self._target, self._aims = together(model), target, aims
        self.teller = Teller(aims)
        self._learned, self._free = learned, SimpleQueue[_Row]()
        known = self._knowledge(profile)
        self._rows = [
            _Row(index, deepcopy(known)) for index in range(model.rows)
        ]  # texts are made at once: each row learns alone
        for row in self._rows:
            self._free.put(row)

    @contextmanager
    def drafter(self) -> Iterator[tuple[AdaptiveDrafter, Navigator]]:
        """Waits until a row is free."""
        row = self._free.get()
        drafter = AdaptiveDrafter(
            self._model, Pilot(row.known, bets=self._aims.bets), row=row.index
        )
        try:
            yield drafter, self._navigator(row.known)
        finally:
            row.rounds += drafter.drafted.rounds
            self._free.put(row)

    def keep(self) -> None:
        """Remember, for the next run, how the target takes this draft: as the row saw it that learned most. Not while texts are made."""
        most = max(self._rows, key=lambda row: row.rounds)
        if self._learned is None or not most.rounds:
            return
        try:
            write_acceptance(most.known.acceptance, self._learned)
        except OSError as error:
            print(f"note: what was learned was not kept: {error}", file=sys.stderr)

    def _knowledge(self, profile: dict[int, float]) -> Knowledge:
        description = self._target.description
        link = link_times(probe_link(self._target.probe, say))
        known = Knowledge(
            DraftTimes(profile), TargetTimes(dict(description.times)), link, self._acceptance()
        )
        if description.draft_times:
            known.call_there, known.room_there = (
                DraftTimes(dict(description.draft_times)).seconds,
                description.draft_nodes,
            )
        return known

    def _acceptance(self) -> AcceptanceModel:
        """What was learned in earlier runs, else the shipped prior."""
        try:
            return (
                read_acceptance(self._learned)
                if self._learned is not None and self._learned.exists()
                else read_acceptance()
            )
        except (InvalidRequest, OSError) as error:
            print(f"note: {self._learned} is not used: {error}", file=sys.stderr)
            return read_acceptance()

    def _navigator(self, known: Knowledge) -> Navigator:
        aims, description = self._aims, self._target.description
        allowed = {DISTRIBUTED}
        if aims.auto:
            seeded = bool(description.draft_model) and not description.draft_model.endswith(CLASSIC)
            allowed |= {TARGET_ONLY, FUSED} if seeded else {TARGET_ONLY}
        most = description.max_tree_nodes - 1
        tell = self.teller.tell if aims.explain or aims.auto or not aims.wish.speed_alone else None
        return Navigator(
            known, aims.wish, aims.terms, frozenset(allowed), most, bets=aims.bets, tell=tell
        )


class Teller:
    """Says on stderr what is decided: once a run when the draft is left or a limit cannot be kept, and everything with --explain."""

    def __init__(self, aims: Aims) -> None:
        self._aims, self._said = aims, set[str]()
        self._order: dict[
            int, list[str]
        ] = {}  # text -> architectures as they were last shown, the chosen one first
        self._broken_at = (
            0  # characters of the streamed text after which its line was last broken off
        )

    def tell(
        self, course: Course, done: Completion | None = None, *, streamed: bool = False
    ) -> None:
        """done: the text so far; streamed: it stands on the terminal, perhaps in the middle of a line."""
        lines = self._notes(course)
        if self._aims.explain:
            best_first = sorted(course.alternatives, key=lambda one: course.tariff.of(one.effort))
            order, index = (
                [course.architecture, *(one.architecture for one in best_first)],
                -1 if done is None else done.index,
            )
            plan, *table = explained(
                course, self._aims, done, best_first if self._order.get(index) != order else ()
            )
            lines += [plan if done is None or streamed else f"prompt {done.index}, {plan}", *table]
            self._order[index] = order
        if lines and streamed and done is not None and len(done.text) != self._broken_at:
            self._broken_at = len(done.text)
            lines = lines if done.text.endswith("\n") else ["", *lines]
        if lines:
            print("\n".join(lines), file=sys.stderr, flush=True)

    def _notes(self, course: Course) -> list[str]:
        """That are new in this run."""
        notes = {} if course.notice is None else {"limit": f"note: {course.notice}"}
        if course.architecture != DISTRIBUTED:
            notes[course.architecture] = (
                f"note: {course.architecture} goes on from here: drafting on this machine does not pay now"
            )
        new = [line for what, line in notes.items() if what not in self._said]
        self._said |= notes.keys()
        return new


def explained(
    course: Course, aims: Aims, done: Completion | None, table: Sequence[Forecast]
) -> Iterator[str]:
    """A line for the decision, with what was predicted and what the text so far was made at, and one for each of the table's settings."""
    told = all(math.isfinite(one.tokens_per_second) for one in course.alternatives)
    speed = "" if done is None else _speed(done)
    yield f"plan: {course.forecast.words}: {_predicted(course.forecast, aims) + ' predicted' if told else UNTOLD}{speed}"
    for one in table:
        mark = "*" if one is course.forecast else " "
        yield f"  {mark} {one.words:<42} {_predicted(one, aims) if told else 'unknown'}"


UNTOLD = "unknown until the target's times are seen"


def _predicted(one: Forecast, aims: Aims) -> str:
    speed = f"{one.tokens_per_second:.1f} tokens/s"
    if aims.terms is None:
        return speed
    price = aims.terms.price(aims.wish.objective, 1.0, one.effort)
    return (
        speed
        if price.value is None
        else f"{speed}, {price_words(aims.wish.objective, price.value)}"
    )


def _speed(done: Completion) -> str:
    """Measured after the first chunk, as the predictions are; nothing before there is another one."""
    if len(done.arrivals) < 2 or done.seconds <= done.arrivals[0]:
        return ""
    return f"; measured so far {(len(done.token_ids) - done.chunk_tokens[0]) / (done.seconds - done.arrivals[0]):.1f} tokens/s"


def learned_file(draft: str, target: str) -> Path:
    """Where what was learned about this pair is kept."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"
