"""Drafting on this machine: what is known of draft, link and target, and a proposer for each row of
the draft, for one text at a time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from grpc_comm.client.connection import Connection
from inference.backends import Model
from inference.backends.together import Together
from inference.cache_directory import cache_directory
from inference.cost.accounting import Rates
from inference.cost.objective import Effort, Terms, Wish
from inference.drafters.model_proposer import ROOM, WIDEST, ModelProposer
from inference.drafters.round_proposer import RoundProposer
from inference.drafters.tree_policies import BestFirst, Chain, Policy, Static
from inference.errors import InvalidRequest
from inference.model.checkpoint import fingerprint
from inference.order import Pace
from inference.planner.acceptance import AcceptanceModel, read_acceptance, write_acceptance
from inference.planner.knowledge import Knowledge
from inference.planner.prices import MESSAGE_BYTES, Prices
from inference.proposer import Proposer
from inference.times import DraftTimes, TargetTimes
from outrider.calibrate import link_times, probe_link
from outrider.completion import Completion, Request, Show, complete
from outrider.explain import Explainer
from outrider.models import PREFILL_NODES, Checkpoint, load_model
from outrider.options import Options
from outrider.profiles import say, user_profiles
from outrider.report import silent
from outrider.steering import SteeredPrices
from outrider.wishes import fallback_note, read_terms, read_wish

if TYPE_CHECKING:
    from inference.backends.eager import EagerModel
    from inference.backends.legacy_neuron import LegacyNeuronModel

DEFAULT_TREE = BestFirst(nodes=16, depth=6)
Complete = Callable[[Request, Show, threading.Event], Completion]
Make = Callable[[Model, int], Proposer]
"""A proposer on this row of the model."""


class Rows:
    """Proposers on the rows of a draft model, lent to one text at a time each. Calls that come at
    the same time are computed together.
    """

    def __init__(self, model: Model, make: Make) -> None:
        shared = Together(model)
        self.proposers = [make(shared, row) for row in range(model.rows)]
        self._free = SimpleQueue[Proposer]()
        for proposer in self.proposers:
            self._free.put(proposer)

    @contextmanager
    def proposer(self) -> Iterator[Proposer]:
        """Waits until a row is free."""
        proposer = self._free.get()
        try:
            yield proposer
        finally:
            self._free.put(proposer)


def rounds(model: Model, policy: Policy, room: int) -> Rows:
    """Rows that draft a whole tree of this policy for each forward. room: candidates that a
    forward has.
    """
    return Rows(model, lambda shared, row: RoundProposer(shared, policy, room=room, row=row))


@contextmanager
def drafting(
    options: Options,
    checkpoint: Checkpoint,
    target: Connection,
    rows: int,
    length: int,
    rates: Rates | None,
) -> Iterator[Complete]:
    """Completes requests with a draft here, as the options wish."""
    if options.waits:
        policy = read_policy(options)
        ranked = policy.most_ranked
        model = load_draft(options, checkpoint, rows, length, ranked, ranked)
        waiting = rounds(model, policy, target.description.max_tree_nodes - 1)

        def complete_in_rounds(
            request: Request, show: Show, cancelled: threading.Event
        ) -> Completion:
            with waiting.proposer() as proposer:
                return complete(
                    request,
                    target.session(),
                    [proposer],
                    checkpoint.tokenizer,
                    show,
                    cancelled,
                    order=request.order(Pace.WAIT),
                )

        yield complete_in_rounds
    else:
        with _growing(options, checkpoint, target, rows, length, rates) as complete_growing:
            yield complete_growing


@contextmanager
def _growing(
    options: Options,
    checkpoint: Checkpoint,
    target: Connection,
    rows: int,
    length: int,
    rates: Rates | None,
) -> Iterator[Complete]:
    """A draft that never waits. What was learned is kept at the end."""
    aims = read_aims(options, rates)
    model = load_draft(options, checkpoint, rows, length, ROOM, WIDEST)
    profile = user_profiles().draft(checkpoint, model, length)
    learned = learned_file(fingerprint(checkpoint.directory), target.description.model_fingerprint)
    pool = GrowingPool(model, profile, target, aims, learned)

    def complete_growing(request: Request, show: Show, cancelled: threading.Event) -> Completion:
        explainer = Explainer(
            pool.round_trip, aims.terms, aims.wish.objective, streamed=show is not silent
        )
        with pool.proposer() as proposer:
            done = complete(
                request,
                target.session(),
                [proposer],
                checkpoint.tokenizer,
                show,
                cancelled,
                offline=options.offline == "draft",
                tell=explainer.tell if options.explain else None,
            )
        if options.explain:
            explainer.say(done)
        return done

    try:
        yield complete_growing
    finally:
        pool.keep()


def load_draft(
    options: Options, checkpoint: Checkpoint, rows: int, length: int, room: int, widest: int
) -> EagerModel | LegacyNeuronModel:
    """The draft model. room: nodes that a row may have ranked beyond its longest text.  widest:
    of these in one call.
    """
    return load_model(
        options,
        checkpoint,
        rows=rows,
        sequence_length=length,
        spare=room,
        max_nodes=max(PREFILL_NODES, widest),
    )


@dataclass(frozen=True)
class Aims:
    """What the user wants of every text of a run. terms: None where nothing is priced.

    battery: drafting has a small price of its own, since nobody says what its energy costs.
    """

    wish: Wish
    terms: Terms | None
    battery: bool = True

    def prices(self, known: Knowledge) -> Prices:
        """Of one row of the draft."""
        if self.terms is None or self.wish.speed_alone:
            return Prices(battery=self.battery)
        expected = Effort(known.target.seconds(1, 1), known.draft.seconds(1), MESSAGE_BYTES)
        cost = self.terms.tariff(self.wish.objective)
        guess = expected if expected.wall else Effort(1.0, 1.0, MESSAGE_BYTES)
        return SteeredPrices(battery=self.battery, wish=self.wish, cost=cost, expected=guess)


SPEED_ALONE = Aims(Wish(), None)
"""Of a user who asks for nothing."""


def read_aims(options: Options, rates: Rates | None) -> Aims:
    """Raises InvalidRequest where the wish is counted in what nobody has stated."""
    wish = read_wish(options, rates)
    note = fallback_note(options, rates, wish)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
    terms = read_terms(options, rates, wish)
    if terms is not None and not wish.speed_alone:
        terms.tariff(wish.objective)  # before anything is loaded: whether it can be computed
    return Aims(wish, terms, battery=options.draft_watts is None)


class GrowingPool(Rows):
    """Proposers that never wait, on the rows of a draft model, against one target. What a row
    learned in one text serves its next; all begin alike.

    learned: the file of what earlier runs learned; None to begin with the shipped prior and to keep
    nothing.
    """

    def __init__(
        self,
        model: Model,
        profile: dict[int, float],
        target: Connection,
        aims: Aims,
        learned: Path | None,
    ) -> None:
        self._learned = learned
        known = self._knowledge(profile, target)
        self.round_trip = known.link.seconds(0)
        # texts are made at once: each row learns alone
        self.known = [deepcopy(known) for _ in range(model.rows)]
        prices = [aims.prices(known) for known in self.known]
        super().__init__(
            model, lambda shared, row: ModelProposer(shared, row, self.known[row], prices[row])
        )

    def keep(self) -> None:
        """Remember, for the next run, how the target takes this draft: as the row saw it that
        learned most. Not while texts are made.
        """
        calls = [proposer.calls for proposer in self.proposers]
        if self._learned is None or not any(calls):
            return
        try:
            write_acceptance(self.known[calls.index(max(calls))].acceptance, self._learned)
        except OSError as error:
            print(f"note: what was learned was not kept: {error}", file=sys.stderr)

    def _knowledge(self, profile: dict[int, float], target: Connection) -> Knowledge:
        times = TargetTimes(dict(target.description.times))
        link = link_times(probe_link(target.probe, say))
        return Knowledge(DraftTimes(profile), times, link, self._acceptance())

    def _acceptance(self) -> AcceptanceModel:
        """What was learned in earlier runs, else the shipped prior."""
        try:
            if self._learned is not None and self._learned.exists():
                return read_acceptance(self._learned)
        except (InvalidRequest, OSError) as error:
            print(f"note: what was learned is not used: {error}", file=sys.stderr)
        return read_acceptance()


def learned_file(draft: str, target: str) -> Path:
    """Where what was learned about this pair is kept."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"


def read_policy(options: Options) -> Policy:
    """The tree that --gamma, --tree_rates or --tree_nodes and --tree_depth ask for."""
    nodes, depth = (
        options.tree_nodes or DEFAULT_TREE.nodes,
        options.tree_depth or DEFAULT_TREE.depth,
    )
    if options.gamma is not None:
        if options.tree_nodes or options.tree_depth or options.tree_rates:
            raise InvalidRequest(
                "--gamma drafts a chain: it does not go with --tree_nodes, --tree_depth or "
                "--tree_rates"
            )
        return Chain(options.gamma)
    if options.tree_rates is not None:
        try:
            return Static(
                tuple(float(rate) for rate in options.tree_rates.split(",")), nodes, depth
            )
        except ValueError as error:
            raise InvalidRequest(f"--tree_rates {options.tree_rates}: {error}") from error
    return BestFirst(nodes, depth)
