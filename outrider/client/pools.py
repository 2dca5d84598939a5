"""Pools of proposers. Each proposer serves one text at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from grpc_comm.client.connection import Connection
from inference.backends.dynamic_batcher import DynamicBatcher
from inference.command import say
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.drafters.round_proposer import Policy, RoundProposer
from inference.errors import InvalidRequest
from inference.files.writing import cache_directory
from inference.planner.acceptance import AcceptanceModel, PairStats
from inference.planner.acceptance_file import read_acceptance, write_acceptance
from inference.proposer import Proposer
from inference.times import Table, Times
from outrider.client.probing import measure_round_trip
from outrider.money.goal import UNSTEERED, Goal

P = TypeVar("P", bound=Proposer)

WANTED_SECONDS = 0.25
"""Seconds between two checks whether a text that waits for a row still wants it."""


class Rows(Generic[P]):
    """Lends proposers, each to one text at a time."""

    def __init__(self, proposers: Sequence[P]) -> None:
        self.proposers = proposers
        self._free = SimpleQueue[P]()
        for proposer in proposers:
            self._free.put(proposer)

    @contextmanager
    def lent(self, wanted: Callable[[], bool]) -> Iterator[Sequence[Proposer]]:
        """Lend a proposer once a row is free; none if the text ends before.

        Call it on the draft's thread: it blocks, and the text must not wait.
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
        """Wait until no text has a row: calls may still run when their texts have ended."""
        for proposer in [self._free.get() for _ in self.proposers]:
            self._free.put(proposer)

    def _next(self, wanted: Callable[[], bool]) -> P | None:
        while wanted():
            try:
                return self._free.get(timeout=WANTED_SECONDS)
            except Empty:
                pass
        return None


class RoundRows(Rows[RoundProposer]):
    """Rows that draft a whole tree of a policy for each forward pass. They cannot be steered."""

    round_trip = None

    @property
    def unsteered(self) -> str:
        return UNSTEERED

    def steer(self, goal: Goal) -> None:
        raise InvalidRequest(UNSTEERED)


def rounds(draft: Draft, policy: Policy, room: int) -> RoundRows:
    """Rows that draft a whole tree of this policy for each forward pass.

    draft: has a model
    room: candidates per forward pass
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

    times: seconds of a call of the draft, by its shape; empty without a draft model
    learned: the file of learned statistics; None starts from the shipped prior and stores nothing
    """

    target: Connection
    times: Table
    learned: Path | None


class GrowingRows(Rows[GrowingProposer]):
    """Proposers that never wait, one for each row of a draft, for the same target.

    A row keeps its learned statistics between texts. All rows start alike.

    copies: whether each row proposes copies of its own text
    """

    unsteered = ""

    def __init__(self, draft: Draft, pair: Pair, goal: Goal, copies: bool, rows: int) -> None:
        self._learned = pair.learned
        target = Times(dict(pair.target.description.times))
        self.round_trip: float = measure_round_trip(pair.target.probe, say)
        learned = _read_learned(pair.learned)
        stats = PairStats(Times(pair.times), target, learned, self.round_trip)
        # texts run concurrently: each row learns separately
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
        """Draft by this goal from now on, also in running texts."""
        for proposer, stats in zip(self.proposers, self.stats, strict=True):
            proposer.prices = goal.prices(stats)

    def keep(self) -> None:
        """Write the learned statistics to their file, for the next run: those of the row that
        learned most. Do not call it while texts run.
        """
        sent = [proposer.proposed for proposer in self.proposers]
        if self._learned is None or not any(sent):
            return
        try:
            write_acceptance(self.stats[sent.index(max(sent))].acceptance, self._learned)
        except OSError as error:
            say(f"note: learned statistics were not stored: {error}")


def _read_learned(file: Path | None) -> AcceptanceModel:
    """The acceptance model of earlier runs, else the shipped prior."""
    try:
        if file is not None and file.exists():
            return read_acceptance(file)
    except (InvalidRequest, OSError) as error:
        say(f"note: learned statistics are not used: {error}")
    return read_acceptance()


AnyRows: TypeAlias = GrowingRows | RoundRows
"""Rows that never wait, or rows for synchronous rounds."""


def learned_file(draft: str, target: str) -> Path:
    """The file of this pair's learned statistics."""
    return cache_directory("acceptance") / f"{draft[:16]}-{target[:16]}.json"
