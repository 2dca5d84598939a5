"""Pools of proposers. Each proposer serves one request at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from grpc_comm.client.connection import Connection
from inference.backends.wrappers import DynamicBatcher
from inference.command import say
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.drafters.round_proposer import Policy, RoundProposer
from inference.errors import InvalidRequest
from inference.files.writing import cache_directory
from inference.planner.acceptance import (
    AcceptanceModel,
    PairStats,
    read_acceptance,
    write_acceptance,
)
from inference.proposer import Proposer
from inference.times import Table, Times
from outrider.client.probing import measure_round_trip
from outrider.money.goal import UNSTEERED, Goal

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
    """Rows that draft a whole tree for each forward pass of the target. They ignore steer()."""

    round_trip = None

    @property
    def unsteered(self) -> str:
        return UNSTEERED

    def steer(self, goal: Goal) -> None:
        raise InvalidRequest(UNSTEERED)


def rounds(draft: Draft, policy: Policy, room: int) -> RoundRows:
    """Return rows that draft a whole tree of this policy for each forward pass of the target.

    draft: must have a model
    room: maximum candidates per forward pass
    """
    assert draft.model is not None, "it ranks nodes"
    shared = DynamicBatcher(draft.model)
    return RoundRows(
        [
            RoundProposer(shared, policy, room=room, row=row, make_rule=draft.make_rule)
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
