"""A draft on the target's device: a proposer for each session that requests it. The draft is a
separate model, or a head that reads the target's features.

The draft runs between forward passes, on the engine's thread. A call serves all drafted sessions,
and is made while its expected tokens are worth more than its seconds. A session without the draft
is delayed only as far as its service credit allows. A session with the draft pays for calls with
tokens that it is ahead, or with a deficit that the rest of its output can repay, unless its
tenant's drafts gained less than they cost. If the draft fails, sessions continue without it.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol
from weakref import WeakSet

from inference.backends import Ranked, Segment
from inference.backends.batch import call_each
from inference.backends.sequence import TargetRow
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.engine.colocated.arbitration import ProposerArbitration, token_seconds
from inference.engine.scheduler import DelayedSessions
from inference.engine.sessions.session import Session
from inference.engine.sessions.text_rules import DraftRules
from inference.engine.tuning import TUNING
from inference.loop.draft_tuning import TUNING as DRAFTING
from inference.order import End, Spent
from inference.planner.acceptance import PairStats
from inference.planner.prices import Prices, Usage
from inference.proposer import COLOCATED, Nodes
from inference.tree.candidates import ProposalStream

log = logging.getLogger(__name__)

MAX_DEFICIT = 1.0
"""Tokens that a session may fall behind its promised rate for the draft's calls."""

RECORD_BOUND = 1.0
"""Maximum absolute record of a tenant in tokens, so that a few calls can change its sign."""

USUAL_NODES = 16
"""Nodes of the forward pass by whose time the cost of a candidate is estimated."""

CALL_NODES = 4
"""Assumed nodes of a draft call when it is compared with other proposers."""


MAX_WITHOUT_MODEL = 64
"""Maximum sessions that a draft without a model serves at a time."""


class CandidateReceiver(Protocol):
    """The part of an engine that receives candidates."""

    def join(self, session: Session) -> ProposalStream: ...

    def leave(self, session: Session, stream: ProposalStream) -> None: ...

    def append(self, session: Session, stream: ProposalStream, nodes: Nodes) -> object: ...


@dataclass
class _DraftedSession:
    """A session that the draft serves.

    gained: tokens gained by the latest calls, minus the tokens that root-only passes would give in
    the time of these calls and of longer passes. None: no call since the last new tokens.
    """

    session: Session
    proposer: GrowingProposer
    receiver: CandidateReceiver
    stream: ProposalStream
    row: int  # row of the draft
    end: int  # maximum length that the draft assumes
    length: int  # number of tokens that were passed to the proposer
    spent: Spent = field(default_factory=Spent)  # costs of the session for these tokens
    fed: bool = False  # whether the draft has the keys of the prompt
    ahead: float = 0.0  # tokens ahead of the promised rate, with the time of passes and calls
    gained: float | None = None
    next_number: int = 0  # number of the next node
    arbitration: ProposerArbitration = field(default_factory=ProposerArbitration)

    def read_progress(self, now: float, root_only: float) -> bool:
        """Pass newly committed tokens to the proposer. Return whether there were any.

        root_only: seconds of a root-only forward pass.
        """
        progress = self.session.progress(self.length, self.stream)
        tokens, proposers = progress.tokens, progress.proposers
        if not tokens or progress.end is not End.NOT:
            return False
        spent = progress.beyond(self.spent)
        forwards, took = max(spent.forwards, 1), spent.model_seconds
        self.add_service(len(tokens) - TUNING.min_rate * took / root_only)
        if self.gained is not None:
            self.gained += proposers.count(COLOCATED) - max(took / root_only - forwards, 0.0)
        self.arbitration.observe(self.session.length, proposers, forwards)
        self.proposer.on_progress(progress, now)
        self.length, self.spent = self.session.length, progress
        return True

    def add_service(self, tokens: float) -> None:
        """Add tokens (or subtract, if negative) to `ahead`."""
        self.ahead = min(self.ahead + tokens, TUNING.max_ahead)

    def charge_call(self, tokens: float) -> None:
        """Charge a draft call. tokens: tokens of root-only forward passes in the same time"""
        self.add_service(-TUNING.min_rate * tokens)
        self.gained = (self.gained or 0.0) - tokens

    def deliver(self, now: float) -> None:
        """Append the proposer's unsent candidates that are worth sending."""
        while (nodes := self.proposer.flush(now, self.next_number)) is not None:
            self.next_number = nodes.end
            self.receiver.append(self.session, self.stream, nodes)


class ColocatedDrafter:
    """The draft on the target's device. Used on the engine's thread only.

    stats: returns a row's times and acceptances, which persist from session to session.
    room: maximum nodes that a row ranks beyond the committed tokens.
    copies: whether copies of a session's earlier text are proposed, too.
    clock: returns seconds.
    """

    def __init__(
        self,
        draft: Draft,
        stats: Callable[[], PairStats],
        *,
        room: int,
        copies: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._draft, self._room, self._clock, self._copies = draft, room, clock, copies
        self._rules = DraftRules(draft.make_rule)
        rows = MAX_WITHOUT_MODEL if draft.model is None else draft.model.rows
        self._stats = [stats() for _ in range(rows)]
        self._free = list(range(rows))
        self._drafted: dict[Session, _DraftedSession] = {}
        self._failed: WeakSet[Session] = WeakSet()
        self._records: defaultdict[str, float] = defaultdict(float)  # tenant -> tokens gained
        self._sufficed: dict[str, bool] = {}  # tenant -> its last text needed no draft
        self._around = 0.0  # seconds spent on processing the last call's answers

    @property
    def free_rows(self) -> int:
        """Number of the draft's rows that no session has."""
        return len(self._free)

    def work(self, ready: Sequence[Session], root_only: float, receiver: CandidateReceiver) -> None:
        """Draft for the sessions that request it, as long as this is worth the delay.

        ready: sessions that the next forward pass will serve.
        root_only: seconds of a root-only forward pass of these sessions; 0 while unknown.
        """
        for drafted in list(self._drafted.values()):
            if _is_gone(drafted):
                self._release(drafted)
        undrafted = DelayedSessions(
            [session for session in ready if not session.drafted_beside], root_only
        )
        if not root_only:
            return  # no forward pass has been timed yet
        for session in ready:
            self._admit(session, root_only, receiver)
        served = [self._drafted[session] for session in ready if session in self._drafted]
        for drafted in served:
            if not drafted.fed and undrafted.are_ahead():
                began = self._clock()
                self._feed(drafted)
                undrafted.count_delay(self._clock() - began)
            if drafted.fed:
                if drafted.read_progress(self._clock(), root_only):
                    self._keep_record(drafted)
                drafted.deliver(self._clock())
        while undrafted.are_ahead():
            began = self._clock()
            calling = [drafted for drafted in served if self._wants_call(drafted, began, root_only)]
            if not calling:
                return
            self._call(calling, began)
            seconds = self._clock() - began
            undrafted.count_delay(seconds)
            for drafted in calling:
                drafted.charge_call(seconds / root_only)

    def _wants_call(self, drafted: _DraftedSession, now: float, root_only: float) -> bool:
        """Whether a call is worth its cost for the session, and the session can pay for it."""
        if not drafted.fed or drafted.session not in self._drafted or self._adds_nothing(drafted):
            return False
        if drafted.length < drafted.session.length:
            return False  # the client ended the output during this step
        tokens = drafted.ahead + self._allowed_deficit(drafted)
        return bool(drafted.proposer.choose(now, tokens * root_only / TUNING.min_rate))

    def _adds_nothing(self, drafted: _DraftedSession) -> bool:
        """Whether other proposers alone are faster than this draft would be."""
        stats = self._stats[drafted.row]
        forward, call = stats.target.seconds(1, 1), stats.draft.seconds(1, CALL_NODES)
        level = float(stats.acceptance.mean_edges(DRAFTING.width).sum())
        token = token_seconds(forward, call, level)
        return drafted.arbitration.suffice(drafted.session.length, forward, token)

    def _allowed_deficit(self, drafted: _DraftedSession) -> float:
        """Return the tokens that the session may fall behind: as many as the rest of its output can
        repay; 0 if its tenant's record is bad.
        """
        session = drafted.session
        repayable = (1 - TUNING.min_rate) * max(drafted.end - session.length, 0)
        return min(MAX_DEFICIT, repayable) if self._records[session.tenant] >= 0 else 0.0

    def _keep_record(self, drafted: _DraftedSession) -> None:
        if drafted.gained is not None:
            tenant = drafted.session.tenant
            record = self._records[tenant] + drafted.gained
            self._records[tenant] = min(max(record, -RECORD_BOUND), RECORD_BOUND)
            drafted.gained = None

    def _admit(self, session: Session, root_only: float, receiver: CandidateReceiver) -> None:
        """Give the session a row of the draft, if it requests one and a row is free."""
        order = session.order
        if order is None or not order.beside or order.end <= session.length + 1:
            return
        if session in self._drafted or session in self._failed or not self._free:
            return
        if (make_rule := self._rules.find(session)) is None:
            return
        row = self._free.pop()
        stats, effort = self._stats[row], Usage(root_only)
        node = _node_seconds(stats)
        proposer = self._draft.proposer(
            row,
            stats,
            Prices(holds_target=True, node_seconds=node, effort=effort, tokens=1.0),
            room=self._room,
            clock=self._clock,
            kind=COLOCATED,
            copies=self._copies,
            beside=partial(_row_of, session),
            make_rule=make_rule,
        )
        proposer.open(list(session.tokens), session.params, order.end)
        stream = receiver.join(session)
        before = replace(session.spent)  # the draft did not cause earlier costs
        drafted = _DraftedSession(
            session, proposer, receiver, stream, row, order.end, session.length, before
        )
        drafted.arbitration.silent = self._sufficed.get(session.tenant, False)
        self._drafted[session] = drafted

    def _feed(self, drafted: _DraftedSession) -> None:
        """Prefill the next part of a session's tokens; forward passes run between parts."""
        try:
            drafted.fed = not drafted.proposer.feed()
        # A failure of the draft costs speed and never ends a session.
        except Exception as error:
            self._fail(drafted, error)

    def _call(self, calling: Sequence[_DraftedSession], began: float) -> None:
        """Make one draft call for several sessions, which are charged the time since `began`, and
        that of processing the previous call's answers.
        """
        answers = call_each(self._rank, [drafted.proposer.segment() for drafted in calling])
        ended = self._clock()
        seconds = ended - began + self._around
        for drafted, answer in zip(calling, answers, strict=True):
            if isinstance(answer, Exception):
                self._fail(drafted, answer)
            else:
                drafted.proposer.take(answer, seconds)
                drafted.deliver(self._clock())
        self._around = self._clock() - ended

    def _rank(self, segments: Sequence[Segment]) -> list[Ranked]:
        assert self._draft.model is not None, "only a model has calls"
        return self._draft.model.rank(segments, DRAFTING.width)

    def _fail(self, drafted: _DraftedSession, error: Exception) -> None:
        log.error("the draft beside the target failed: %s: %s", type(error).__name__, error)
        self._failed.add(drafted.session)
        self._release(drafted)

    def _release(self, drafted: _DraftedSession) -> None:
        self._sufficed[drafted.session.tenant] = drafted.arbitration.silent
        del self._drafted[drafted.session]
        drafted.receiver.leave(drafted.session, drafted.stream)
        self._free.append(drafted.row)


def _row_of(session: Session) -> TargetRow:
    assert session.row is not None, "drafting needs a row"
    return TargetRow(session.row.index, session.row.slots)


def _is_gone(drafted: _DraftedSession) -> bool:
    """Whether the session closed, lost its row, or no longer requests the draft.

    Also whether its order was extended beyond the length that the draft assumes.
    """
    session, order = drafted.session, drafted.session.order
    if session.closed is not None or session.row is None:
        return True
    return order is None or not order.beside or order.end > drafted.end


def _node_seconds(stats: PairStats) -> float:
    """Return the seconds that a candidate adds to a forward pass of one row."""
    narrow, wide = stats.target.seconds(1, 1), stats.target.seconds(1, USUAL_NODES)
    return max(wide - narrow, 0.0) / (USUAL_NODES - 1)
