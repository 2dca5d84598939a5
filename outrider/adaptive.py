"""Drafting that adapts: what is known of this machine, the link and the target, put together for each text."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY
from inference.model.checkpoint import fingerprint
from inference.navigator import Course, Navigator
from inference.objective import PER_MILLION, Effort, Terms, Wish
from inference.pilot import Knowledge, Pilot
from inference.times import DraftTimes, LinkTimes, TargetTimes
from outrider.calibrate import measure_link
from outrider.completion import Completion, Request, Show, speculate_adaptive
from outrider.fused import CLASSIC
from outrider.models import PREFILL_NODES, Checkpoint, load_model
from outrider.options import Options
from outrider.profiles import user_profiles
from outrider.wishes import read_terms, read_wish

Complete = Callable[[Request, Show, threading.Event], Completion]


@contextmanager
def adapting(options: Options, checkpoint: Checkpoint, target: Connection, rows: int, length: int, rates: Rates | None) -> Iterator[Complete]:
    """Completes requests as the options wish; what was learned is kept at the end."""
    wish = read_wish(options, rates)
    terms = read_terms(options, rates, wish)
    if terms is not None and not wish.speed_alone:
        terms.tariff(wish.objective)  # before anything is loaded: whether it can be computed
    aims = Aims(wish, terms, options.architecture == "auto", not options.no_bets, options.explain)
    model = load_model(options, checkpoint, rows=rows, sequence_length=length, spare=MOST_RANKED, max_nodes=PREFILL_NODES)
    profile = user_profiles().draft(checkpoint, model, length)
    learned = learned_file(fingerprint(checkpoint.directory), target.description.model_fingerprint)
    pool = AdaptivePool(model, profile, target, aims, learned)

    def complete(request: Request, show: Show, cancelled: threading.Event) -> Completion:
        with pool.drafter() as (drafter, navigator):
            return speculate_adaptive(request, drafter, target.verifier(), navigator, checkpoint.tokenizer, show, cancelled)

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


class AdaptivePool:
    """Adaptive drafters on the rows of a draft model, against one target. What a row learned in one text serves its next.

    learned: the file of what earlier runs learned; None to begin with the shipped prior and to keep nothing.
    """

    def __init__(self, model: Model, profile: dict[int, float], target: Connection, aims: Aims, learned: Path | None) -> None:
        self._model, self._target, self._aims = together(model), target, aims
        self._teller = Teller(aims)
        self._learned, self._free = learned, SimpleQueue[tuple[int, Knowledge]]()
        for row in range(model.rows):
            self._free.put((row, self._knowledge(profile)))

    @contextmanager
    def drafter(self) -> Iterator[tuple[AdaptiveDrafter, Navigator]]:
        """Waits until a row is free."""
        row, known = self._free.get()
        pilot = Pilot(known, bets=self._aims.bets)
        try:
            drafter = AdaptiveDrafter(self._model, pilot, row=row)
            yield drafter, self._navigator(known)
        finally:
            self._free.put((row, known))

    def keep(self) -> None:
        """Remember, for the next run, how the target takes this draft."""
        if self._learned is None:
            return
        row, known = self._free.get()
        self._free.put((row, known))
        try:
            self._learned.parent.mkdir(parents=True, exist_ok=True)
            write_acceptance(known.acceptance, self._learned)
        except OSError as error:
            print(f"note: what was learned was not kept: {error}", file=sys.stderr)

    def _knowledge(self, profile: dict[int, float]) -> Knowledge:
        description = self._target.description
        known = Knowledge(DraftTimes(profile), TargetTimes(dict(description.times)), LinkTimes(), self._acceptance())
        measure_link(self._target, known.link)
        if description.draft_times:
            known.call_there, known.room_there = DraftTimes(dict(description.draft_times)).seconds, description.draft_nodes
        return known

    def _acceptance(self) -> AcceptanceModel:
        """What was learned in earlier runs, else the shipped prior."""
        try:
            return read_acceptance(self._learned) if self._learned is not None and self._learned.exists() else read_acceptance()
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
        tell = self._teller.tell if aims.explain or aims.auto or not aims.wish.speed_alone else None
        return Navigator(known, aims.wish, aims.terms, frozenset(allowed), most, bets=aims.bets, tell=tell)


class Teller:
    """Says on stderr what is decided: once when the draft is left or a limit cannot be kept, and everything with --explain."""

    def __init__(self, aims: Aims) -> None:
        self._aims, self._said = aims, set[str]()

    def tell(self, course: Course) -> None:
        if course.notice is not None:
            self._once("limit", f"note: {course.notice}")
        if course.architecture != DISTRIBUTED:
            self._once(course.architecture, f"note: {course.architecture} goes on from here: drafting on this machine does not pay now")
        if self._aims.explain:
            for line in explained(course, self._aims):
                print(line, file=sys.stderr, flush=True)

    def _once(self, what: str, line: str) -> None:
        if what not in self._said:
            self._said.add(what)
            print(line, file=sys.stderr, flush=True)


def explained(course: Course, aims: Aims) -> Iterator[str]:
    """A line for the decision, and one for the best setting of each architecture, all with what is predicted."""
    price = partial(_priced, terms=aims.terms, objective=aims.wish.objective)
    yield f"plan: {course.forecast.words}: {course.forecast.tokens_per_second:.1f} tokens/s{price(course.forecast.effort)} predicted"
    for one in course.alternatives:
        mark = "*" if one is course.forecast else " "
        yield f"  {mark} {one.words:<42} {one.tokens_per_second:7.1f} tokens/s{price(one.effort)}"


def _priced(effort: Effort, *, terms: Terms | None, objective: str) -> str:
    if terms is None:
        return ""
    figure = terms.price(objective, 1.0, effort)
    if figure.value is None:
        return ""
    return f", ${figure.value * PER_MILLION:.2f} a million" if objective.endswith("cost") else f", {figure.value:.3g} J or s a token"


def learned_file(draft: str, target: str) -> Path:
    """Where what was learned about this pair is kept."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"
