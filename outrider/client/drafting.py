"""Loads the draft of a client on a background thread, and lends its rows to requests.

By default, the draft never waits: it grows a candidate tree while the target keeps decoding.
Options that fix the size of the trees make target and draft work in synchronous rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from grpc_comm.client.connection import Connection
from inference.backends.wrappers import DynamicBatcher
from inference.command import say
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.drafters.round_proposer import BestFirst, Chain, Policy, RoundProposer
from inference.errors import InvalidRequest, Unavailable
from inference.files.writing import cache_directory
from inference.loop.draft_tuning import TUNING
from inference.planner.acceptance import (
    AcceptanceModel,
    PairStats,
    read_acceptance,
    write_acceptance,
)
from inference.proposer import Proposer
from inference.text.grammar import Grammars
from inference.times import Table, Times
from outrider.client.connecting import measure_round_trip
from outrider.draft_methods import FoundDraft
from outrider.models.found_model import Capacity
from outrider.models.loading import PREFILL_NODES
from outrider.models.profiles import user_profiles
from outrider.money import UNSTEERED, Goal
from outrider.options.draft_flags import TreeOptions
from outrider.options.groups import DeviceOptions
from outrider.options.roles import ClientRole
from outrider.processes import BACKGROUND

Loaded = TypeVar("Loaded")

_LOOK_SECONDS = 0.1


class DraftLoader(Generic[Loaded]):
    """The rows of a draft, which are loaded once.

    load: returns a context manager that loads a draft with the given number of rows
    """

    def __init__(self, load: Callable[[int], AbstractContextManager[Loaded]]) -> None:
        self._load, self._lock, self._stack = load, Lock(), ExitStack()
        self._rows = Future[Loaded]()
        self._begun: float | None = None
        self._closed = False

    def begin(self, rows: int = 1) -> None:
        """Start loading the draft with this number of rows. Idempotent."""
        with self._lock:
            if self._begun is None and not self._closed:
                self._begun = time.perf_counter()
                Thread(target=self._work, args=(rows,), name=BACKGROUND, daemon=True).start()

    @property
    def loading_seconds(self) -> float | None:
        """Seconds since loading began, while it runs; None before it starts and after it ends."""
        if self._begun is None or self._rows.done():
            return None
        return time.perf_counter() - self._begun

    @property
    def loaded(self) -> Loaded | None:
        """The rows; None if they are not loaded yet."""
        done = self._rows.done() and self._rows.exception() is None
        return self._rows.result() if done else None

    def check(self) -> None:
        """Raise the load error if loading has already failed."""
        if self._rows.done():
            self._rows.result()

    def wait(self, is_wanted: Callable[[], bool] = lambda: True) -> Loaded | None:
        """Wait for the rows; return None once `is_wanted` returns False. Raises a load error."""
        self.begin()
        while not wait((self._rows,), _LOOK_SECONDS).done:
            if not is_wanted():
                return None
        return self._rows.result()

    def close(self) -> None:
        """Release the rows, now or as soon as they are loaded."""
        with self._lock:
            self._closed = True
            if self._begun is None:
                self._rows.set_exception(_closed())
        self._stack.close()

    def _work(self, count: int) -> None:
        stack = ExitStack()
        try:
            rows = stack.enter_context(self._load(count))
        except BaseException as error:  # raised again in the threads that wait
            self._rows.set_exception(error)
            return
        with self._lock:
            if not self._closed:
                self._stack = stack
                self._rows.set_result(rows)
                return
        stack.close()
        self._rows.set_exception(_closed())


def _closed() -> Unavailable:
    return Unavailable("the client was closed before its draft was loaded")


P = TypeVar("P", bound=Proposer)

WANTED_SECONDS = 0.25
"""Seconds between checks whether a request that waits for a row still needs one."""


class Rows(Generic[P]):
    """A pool that lends proposers, each to one request at a time."""

    def __init__(self, proposers: Sequence[P]) -> None:
        self.proposers = proposers
        self._free = SimpleQueue[P]()
        for proposer in proposers:
            self._free.put(proposer)

    @contextmanager
    def lent(self, is_wanted: Callable[[], bool]) -> Iterator[Sequence[Proposer]]:
        """Lend a proposer once a row is free; yield none if the request ends first.

        Blocks, so call it on the draft's thread: decoding must not wait for it.
        """
        proposer = self._next(is_wanted)
        if proposer is None:
            yield ()
            return
        try:
            yield (proposer,)
        finally:
            proposer.close()
            self._free.put(proposer)

    def settle(self) -> None:
        """Wait until all rows are free: forward passes may outlast the requests they serve."""
        for proposer in [self._free.get() for _ in self.proposers]:
            self._free.put(proposer)

    def _next(self, is_wanted: Callable[[], bool]) -> P | None:
        while is_wanted():
            try:
                return self._free.get(timeout=WANTED_SECONDS)
            except Empty:
                pass
        return None


class RoundRows(Rows[RoundProposer]):
    """Rows that draft a whole tree for each forward pass of the target; they cannot be steered.

    draft: must have a model
    room: maximum candidates per forward pass
    """

    round_trip, unsteered = None, UNSTEERED

    def __init__(self, draft: Draft, policy: Policy, room: int) -> None:
        assert draft.model is not None, "it ranks nodes"
        shared, rule = DynamicBatcher(draft.model), draft.make_rule
        super().__init__(
            [
                RoundProposer(shared, policy, room=room, row=row, make_rule=rule)
                for row in range(shared.rows)
            ]
        )


class Pair(NamedTuple):
    """A draft and a target, for a pool.

    times: seconds of the draft's forward pass, by shape; empty without a draft model
    learned: file of learned statistics; None: start from the shipped prior and store nothing
    """

    target: Connection
    times: Table
    learned: Path | None


class GrowingRows(Rows[GrowingProposer]):
    """Proposers that never wait, one for each row of a draft, all for the same target.

    A row keeps its learned statistics between requests. All rows start with the same statistics.

    copies: whether each row also proposes n-grams copied from its request
    """

    unsteered = ""

    def __init__(self, draft: Draft, pair: Pair, goal: Goal, copies: bool, rows: int) -> None:
        self._learned = pair.learned
        target = Times(dict(pair.target.description.times))
        self.round_trip: float = measure_round_trip(pair.target.probe, say)
        learned = _read_learned(pair.learned)
        stats = PairStats(Times(pair.times), target, learned, self.round_trip)
        # requests run concurrently, so each row learns separately
        self.stats = [deepcopy(stats) for _ in range(rows)]
        shared = None if draft.model is None else DynamicBatcher(draft.model)
        draft = draft._replace(model=shared)
        super().__init__(
            [
                draft.proposer(row, stats, goal.prices(stats), copies=copies)
                for row, stats in enumerate(self.stats)
            ]
        )

    def steer(self, goal: Goal) -> None:
        """Draft by this goal from now on, also in running requests."""
        for proposer, stats in zip(self.proposers, self.stats, strict=True):
            proposer.prices = goal.prices(stats)

    def keep(self) -> None:
        """Write the statistics of the row that learned most to their file, for the next run. Do not
        call this while requests run.
        """
        sent = [proposer.proposed for proposer in self.proposers]
        if self._learned is None or not any(sent):
            return
        try:
            write_acceptance(self.stats[sent.index(max(sent))].acceptance, self._learned)
        except OSError as error:
            say(f"note: learned statistics were not stored: {error}")


def _read_learned(file: Path | None) -> AcceptanceModel:
    """Read the acceptance model of earlier runs; without one, the shipped prior."""
    try:
        if file is not None and file.exists():
            return read_acceptance(file)
    except (InvalidRequest, OSError) as error:
        say(f"note: learned statistics are not used: {error}")
    return read_acceptance()


AnyRows: TypeAlias = GrowingRows | RoundRows
"""Rows that never wait, or rows for synchronous rounds."""


def learned_file(draft: str, target: str) -> Path:
    """Return the file of learned statistics for this draft and target."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"


DEFAULT_TREE = BestFirst(nodes=16, depth=6)
"""The default tree of synchronous rounds."""


class DraftSetup(NamedTuple):
    """The local draft and the remote target."""

    model: FoundDraft | None  # None: n-gram copying only
    target: Connection
    rows: int  # concurrent requests
    length: int  # maximum tokens of a request, prompt and output together
    grammars: Grammars  # for the tokenizer that draft and target share


def draft_rows(
    options: ClientRole, setup: DraftSetup, goal: Goal
) -> AbstractContextManager[AnyRows]:
    """Load the draft and yield its rows. Each row drafts for one request at a time."""
    if options.waits and setup.model is not None:
        return _in_rounds(options, setup, setup.model)
    return _growing(options, setup, goal)


@contextmanager
def _in_rounds(options: ClientRole, setup: DraftSetup, model: FoundDraft) -> Iterator[AnyRows]:
    """Yield rows for synchronous rounds: the target waits for a whole tree of a fixed policy."""
    policy = read_policy(options)
    ranked = policy.max_ranked
    draft = _load(options, model.settled(options), setup, ranked, ranked)
    pool = RoundRows(draft, policy, setup.target.description.max_tree_nodes - 1)
    try:
        yield pool
    finally:
        pool.settle()


@contextmanager
def _growing(options: ClientRole, setup: DraftSetup, goal: Goal) -> Iterator[AnyRows]:
    """Yield rows that never wait. What they learn about draft and target is stored at the end."""
    draft, identity = Draft(None, grammars=setup.grammars), "copy"
    times: Table = {}
    if setup.model is not None:
        model = setup.model.settled(options)
        draft = _load(options, model, setup, TUNING.room, TUNING.widest)
        times = model.times(user_profiles(options), draft, setup.length)
        identity = model.model.fingerprint()
    learned = learned_file(identity, setup.target.description.model_fingerprint)
    pair = Pair(setup.target, times, learned)
    pool = GrowingRows(draft, pair, goal, options.copies, setup.rows)
    try:
        yield pool
    finally:
        pool.settle()
        pool.keep()


def _load(
    options: DeviceOptions, model: FoundDraft, setup: DraftSetup, room: int, widest: int
) -> Draft:
    """Load the draft.

    room: nodes per row in addition to its longest sequence
    widest: maximum number of these nodes in one forward pass
    """
    capacity = Capacity(setup.rows, setup.length, room, max(PREFILL_NODES, widest))
    return model.load(options, capacity)._replace(grammars=setup.grammars)


def read_policy(options: TreeOptions) -> Policy:
    """Return the tree policy given by --gamma, or by --tree_nodes and --tree_depth."""
    if options.gamma is not None:
        return Chain(options.gamma)
    nodes = options.tree_nodes or DEFAULT_TREE.nodes
    depth = options.tree_depth or DEFAULT_TREE.depth
    return BestFirst(nodes, depth)
