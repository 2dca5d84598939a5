"""Proposers, lent out to one text at a time each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from grpc_comm.client.connection import Connection
from inference.backends import Model
from inference.backends.dynamic_batcher import DynamicBatcher
from inference.cache_directory import cache_directory
from inference.command import say
from inference.drafters.block_proposer import proposers_on
from inference.drafters.copy_proposer import CopyProposer
from inference.drafters.copy_source import CopySource
from inference.drafters.round_proposer import RoundProposer
from inference.drafters.tree_policies import Policy
from inference.errors import InvalidRequest
from inference.planner.acceptance import AcceptanceModel, read_acceptance, write_acceptance
from inference.planner.knowledge import Knowledge
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.times import DraftTimes, LatencyModel
from outrider.client.probing import link_times, probe_link
from outrider.money.goals import Aims

One = TypeVar("One", bound=Proposer)

LOOK_SECONDS = 0.25
"""Seconds between two looks whether a text that waits for a row still wants one."""


class Rows(Generic[One]):
    """Lends proposers, each to one text at a time."""

    def __init__(self, proposers: Sequence[One]) -> None:
        self.proposers = proposers
        self._free = SimpleQueue[One]()
        for proposer in proposers:
            self._free.put(proposer)

    @contextmanager
    def lent(self, wanted: Callable[[], bool]) -> Iterator[Sequence[Proposer]]:
        """Lend a proposer once a row is free; none where the text ends before.

        To be called on the draft's thread, since the text waits for nobody.
        """
        proposer = self._next(wanted)
        if proposer is None:
            yield ()
            return
        try:
            yield (proposer,)
        finally:
            proposer.close()
            self._free.put(proposer)

    def settle(self) -> None:
        """Wait until no text has a row: for calls that were under way when their texts ended."""
        for proposer in [self._free.get() for _ in self.proposers]:
            self._free.put(proposer)

    def _next(self, wanted: Callable[[], bool]) -> One | None:
        while wanted():
            try:
                return self._free.get(timeout=LOOK_SECONDS)
            except Empty:
                pass
        return None


def rounds(model: Model, policy: Policy, room: int) -> Rows[RoundProposer]:
    """Rows that draft a whole tree of this policy for each forward.

    room: candidates that a forward has
    """
    shared = DynamicBatcher(model)
    return Rows([RoundProposer(shared, policy, room=room, row=row) for row in range(model.rows)])


class Pair(NamedTuple):
    """A draft and a target, as a pool knows them.

    times: seconds of a call of the draft, by its nodes; empty without a draft model
    learned: the file of what earlier runs learned; None begins with the shipped prior and keeps
    nothing
    """

    target: Connection
    times: dict[int, float]
    learned: Path | None


class GrowingPool(Rows[CopyProposer]):
    """Proposers that never wait, against one target.

    What a row learned in one text serves its next. All rows begin alike.

    make: a row's proposer, from its number, knowledge and prices
    """

    def __init__(
        self,
        rows: int,
        make: Callable[[int, Knowledge, Prices], CopyProposer],
        pair: Pair,
        aims: Aims,
    ) -> None:
        self._learned = pair.learned
        known = self._knowledge(pair.times, pair.target)
        self.round_trip = known.link.seconds(0)
        # texts are made at once: each row learns alone
        self.known = [deepcopy(known) for _ in range(rows)]
        super().__init__(
            [make(row, known, aims.prices(known)) for row, known in enumerate(self.known)]
        )

    @classmethod
    def of_model(
        cls, model: Model, pair: Pair, aims: Aims, sources: Sequence[CopySource | None] = ()
    ) -> GrowingPool:
        """A proposer on each row of a draft model.

        sources: what each row copies from; empty where nothing is copied
        """
        shared, every = DynamicBatcher(model), sources or [None] * model.rows
        make = proposers_on(model)
        return cls(
            model.rows,
            lambda row, known, prices: make(shared, row, known, prices, source=every[row]),
            pair,
            aims,
        )

    @classmethod
    def of_copies(cls, sources: Sequence[CopySource | None], pair: Pair, aims: Aims) -> GrowingPool:
        """Proposers that copy alone, one for each source."""
        return cls(
            len(sources),
            lambda row, known, prices: CopyProposer(known, prices, sources[row]),
            pair,
            aims,
        )

    def steer(self, aims: Aims) -> None:
        """Draft by these aims from now on, also in texts that are being made."""
        for proposer, known in zip(self.proposers, self.known, strict=True):
            proposer.prices = aims.prices(known)

    def keep(self) -> None:
        """Write what was learned to its file, for the next run: that of the row which learned most.
        Not to be called while texts are made.
        """
        sent = [proposer.proposed for proposer in self.proposers]
        if self._learned is None or not any(sent):
            return
        try:
            write_acceptance(self.known[sent.index(max(sent))].acceptance, self._learned)
        except OSError as error:
            say(f"note: what was learned was not kept: {error}")

    def _knowledge(self, profile: dict[int, float], target: Connection) -> Knowledge:
        times = LatencyModel(dict(target.description.times))
        link = link_times(probe_link(target.probe, say))
        return Knowledge(DraftTimes(profile), times, link, self._acceptance())

    def _acceptance(self) -> AcceptanceModel:
        """The acceptance model of earlier runs, else the shipped prior."""
        try:
            if self._learned is not None and self._learned.exists():
                return read_acceptance(self._learned)
        except (InvalidRequest, OSError) as error:
            say(f"note: what was learned is not used: {error}")
        return read_acceptance()


AnyRows: TypeAlias = GrowingPool | Rows[RoundProposer]
"""Rows that never wait, or rows for synchronous rounds."""


def learned_file(draft: str, target: str) -> Path:
    """The file that keeps what was learned about this pair."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"
