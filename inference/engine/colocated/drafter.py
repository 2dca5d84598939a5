"""A draft beside the target: a proposer for each session that requests one. It is a model of its
own, or a head that reads the target's features.

A call of the draft occupies the target's device. So the draft works between forward passes, on the
engine's thread, and a call serves all of its sessions. A call is made while its expected tokens
are worth more than its seconds. Copies of earlier text take no call.

A session without a draft is delayed only by its service credit. A session with one keeps 0.98 of
its root-only rate over its text. It pays for calls from the tokens that it is ahead, or with a
deficit that the rest of the text can repay. A tenant whose drafts gained less than they cost is
allowed no deficit.
When the draft fails, sessions continue without it.
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
from inference.backends.dynamic_batcher import call_each
from inference.backends.sequence import TargetRow
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.engine.colocated.arbitration import ProposerArbitration, token_seconds
from inference.engine.scheduler import HeldUp
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

MOST_DEFICIT = 1.0
"""Tokens that a session may fall behind its promised rate for the draft's calls."""

RECORD_BOUND = 1.0
"""Bound of a tenant's record in tokens, good or bad, so that a few calls can change its sign."""

USUAL_NODES = 16
"""Nodes of the forward pass from which the cost of a candidate is estimated."""

CALL_NODES = 4
"""Assumed nodes of a call of the draft when it is compared with other proposers."""


MOST_WITHOUT_MODEL = 64
"""Sessions that a draft without a model serves at a time."""


class CandidateReceiver(Protocol):
    """The part of an engine that takes candidates."""

    def join(self, session: Session) -> ProposalStream: ...

    def leave(self, session: Session, stream: ProposalStream) -> None: ...

    def append(self, session: Session, stream: ProposalStream, nodes: Nodes) -> object: ...


@dataclass
class _DraftedSession:
    """A session that the draft serves.

    gained: tokens that the latest calls gained, less their cost and that of longer forward passes,
    in root-only forward passes. None: no call was made since the last new tokens.
    """

    session: Session
    proposer: GrowingProposer
    receiver: CandidateReceiver
    stream: ProposalStream
    row: int  # row of the draft
    end: int  # length of the text that the draft assumes
    length: int  # of the text that the proposer has
    spent: Spent = field(default_factory=Spent)  # costs of the session for that text
    fed: bool = False  # the draft has the keys of the text
    ahead: float = 0.0  # tokens ahead of the promised rate, with forward passes and calls counted
    gained: float | None = None
    next_number: int = 0  # of the next node
    arbitration: ProposerArbitration = field(default_factory=ProposerArbitration)

    def read_progress(self, now: float, root_only: float) -> bool:
        """Pass newly committed tokens to the proposer; returns whether there were any.

        root_only: seconds of a root-only forward pass.
        """
        progress = self.session.progress(self.length, self.stream)
        tokens, proposers = progress.tokens, progress.proposers
        if not tokens or progress.end is not End.NOT:
            return False
        spent = progress.beyond(self.spent)
        forwards, took = max(spent.forwards, 1), spent.model_seconds
        self.add_service(len(tokens) - TUNING.least_rate * took / root_only)
        if self.gained is not None:
            self.gained += proposers.count(COLOCATED) - max(took / root_only - forwards, 0.0)
        self.arbitration.observe(self.session.length, proposers, forwards)
        self.proposer.on_progress(progress, now)
        self.length, self.spent = self.session.length, progress
        return True

    def add_service(self, tokens: float) -> None:
        """Add tokens (or subtract, if negative) to `ahead`."""
        self.ahead = min(self.ahead + tokens, TUNING.most_ahead)

    def charge_call(self, tokens: float) -> None:
        """Charge a call of the draft, which took the time of so many root-only tokens."""
        self.add_service(-TUNING.least_rate * tokens)
        self.gained = (self.gained or 0.0) - tokens

    def deliver(self, now: float) -> None:
        """Append the proposer's unsent candidates that are worth sending."""
        while (nodes := self.proposer.flush(now, self.next_number)) is not None:
            self.next_number = nodes.end
            self.receiver.append(self.session, self.stream, nodes)


class ColocatedDrafter:
    """The draft beside the target, on the rows of its own model. Used on the engine's thread only.

    knowledge: returns a row's times and acceptances, which persist from session to session.
    room: maximum nodes beyond the text that a row ranks.
    copies: copies of a session's earlier text are proposed, too.
    clock: returns seconds.
    """

    def __init__(
        self,
        draft: Draft,
        knowledge: Callable[[], PairStats],
        *,
        room: int,
        copies: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._draft, self._room, self._clock, self._copies = draft, room, clock, copies
        self._rules = DraftRules(draft.make_rule)
        rows = MOST_WITHOUT_MODEL if draft.model is None else draft.model.rows
        self._known = [knowledge() for _ in range(rows)]
        self._free = list(range(rows))
        self._drafted: dict[Session, _DraftedSession] = {}
        self._failed: WeakSet[Session] = WeakSet()
        self._records: defaultdict[str, float] = defaultdict(float)  # tenant -> tokens gained
        self._sufficed: dict[str, bool] = {}  # tenant -> its last text needed no draft
        self._around = 0.0  # seconds spent on processing the last call's answers

    @property
    def free_rows(self) -> int:
        """Rows of the draft that no session has."""
        return len(self._free)

    def work(self, ready: Sequence[Session], root_only: float, receiver: CandidateReceiver) -> None:
        """Draft for the sessions that request it, as long as that is worth the delay.

        ready: sessions that the next forward pass will serve.
        root_only: seconds of a root-only forward pass of these sessions; 0 while unknown.
        """
        for drafted in list(self._drafted.values()):
            if _is_gone(drafted):
                self._release(drafted)
        others = HeldUp([one for one in ready if not one.drafted_beside], root_only)
        if not root_only:
            return  # no forward pass has been timed yet
        for session in ready:
            self._admit(session, root_only, receiver)
        served = [self._drafted[one] for one in ready if one in self._drafted]
        for drafted in served:
            if not drafted.fed and others.are_ahead():
                began = self._clock()
                self._feed(drafted)
                others.count_delay(self._clock() - began)
            if drafted.fed:
                if drafted.read_progress(self._clock(), root_only):
                    self._keep_record(drafted)
                drafted.deliver(self._clock())
        while others.are_ahead():
            began = self._clock()
            calling = [drafted for drafted in served if self._wants_call(drafted, began, root_only)]
            if not calling:
                return
            self._call(calling, began)
            seconds = self._clock() - began
            others.count_delay(seconds)
            for drafted in calling:
                drafted.charge_call(seconds / root_only)

    def _wants_call(self, drafted: _DraftedSession, now: float, root_only: float) -> bool:
        """Whether a call is worth its cost for the session, which can pay for it."""
        if not drafted.fed or drafted.session not in self._drafted or self._adds_nothing(drafted):
            return False
        if drafted.length < drafted.session.length:
            return False  # the client ended the text during this step
        tokens = drafted.ahead + self._allowed_deficit(drafted)
        return bool(drafted.proposer.choose(now, tokens * root_only / TUNING.least_rate))

    def _adds_nothing(self, drafted: _DraftedSession) -> bool:
        """Whether other proposers alone are faster than this draft would be."""
        known = self._known[drafted.row]
        forward, call = known.target.seconds(1, 1), known.draft.seconds(1, CALL_NODES)
        level = float(known.acceptance.mean_edges(DRAFTING.width).sum())
        masks = self._draft.masks
        token = token_seconds(forward, call, level, 1 + (masks.most if masks else 0))
        return drafted.arbitration.suffice(drafted.session.length, forward, token)

    def _allowed_deficit(self, drafted: _DraftedSession) -> float:
        """Tokens that the session may fall behind, as many as the rest of its text can repay; 0 if
        its tenant's record is bad.
        """
        session = drafted.session
        repayable = (1 - TUNING.least_rate) * max(drafted.end - session.length, 0)
        return min(MOST_DEFICIT, repayable) if self._records[session.tenant] >= 0 else 0.0

    def _keep_record(self, drafted: _DraftedSession) -> None:
        """Add the result of the latest calls to the tenant's record."""
        if drafted.gained is not None:
            tenant = drafted.session.tenant
            record = self._records[tenant] + drafted.gained
            self._records[tenant] = min(max(record, -RECORD_BOUND), RECORD_BOUND)
            drafted.gained = None

    def _admit(self, session: Session, root_only: float, receiver: CandidateReceiver) -> None:
        """Give the session a row of the draft, if it requests the draft and a row is free."""
        order = session.order
        if order is None or not order.beside or order.end <= session.length + 1:
            return
        if session in self._drafted or session in self._failed or not self._free:
            return
        if (make_rule := self._rules.find(session)) is None:
            return
        row = self._free.pop()
        known, effort = self._known[row], Usage(root_only)
        node = _node_seconds(known)
        proposer = self._draft.proposer(
            row,
            known,
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
        before = replace(session.spent)  # earlier costs are not the draft's
        drafted = _DraftedSession(
            session, proposer, receiver, stream, row, order.end, session.length, before
        )
        drafted.arbitration.silent = self._sufficed.get(session.tenant, False)
        self._drafted[session] = drafted

    def _feed(self, drafted: _DraftedSession) -> None:
        """Prefill the next part of a session's text; forward passes run between parts."""
        try:
            drafted.fed = not drafted.proposer.feed()
        # An error of the draft costs speed and never ends a session.
        except Exception as error:
            self._fail(drafted, error)

    def _call(self, calling: Sequence[_DraftedSession], began: float) -> None:
        """Make one call of the draft for several sessions.

        Its cost is the time since `began`, plus the time that the last call's answers took to
        process.
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
        """Stop drafting for a session and free its row of the draft."""
        self._sufficed[drafted.session.tenant] = drafted.arbitration.silent
        del self._drafted[drafted.session]
        drafted.receiver.leave(drafted.session, drafted.stream)
        self._free.append(drafted.row)


def _row_of(session: Session) -> TargetRow:
    """Return the target's row of the session."""
    assert session.row is not None, "drafting needs a row"
    return TargetRow(session.row.index, session.row.slots)


def _is_gone(drafted: _DraftedSession) -> bool:
    """Whether the session closed, lost its row, or changed its order.

    A changed order requests no draft, or a longer text than the draft assumes.
    """
    session, order = drafted.session, drafted.session.order
    if session.closed is not None or session.row is None:
        return True
    return order is None or not order.beside or order.end > drafted.end


def _node_seconds(known: PairStats) -> float:
    """Seconds that one candidate adds to a forward pass of one row."""
    narrow, wide = known.target.seconds(1, 1), known.target.seconds(1, USUAL_NODES)
    return max(wide - narrow, 0.0) / (USUAL_NODES - 1)
