"""Rounds that one graph of the target drafts and verifies: a kind of forward.

A session whose order asks for the draft beside the target takes part in them where the draft is
compiled into the target's graphs. Sessions that did not ask are held up by a round. Beside them one
is made only when it brings more tokens a second than a forward of everybody, and when they have
banked what it takes. Else all share open forwards. What the draft lacks of a text afterwards, as of
a prompt, it is fed in chunks, each a forward of its own, which is paid for in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from inference.backends import RoundModel, Segment
from inference.backends.sequence import ModelSequence
from inference.engine.forward import Ask, Commit, Share, Took, charge, commit
from inference.engine.graph_tree import GraphTree, inner_tree
from inference.engine.scheduler import LEAST_GAIN, LEAST_RATE, Seconds, Turn
from inference.engine.session import Session
from inference.proposer import HOST
from inference.times import KEPT
from inference.tree import IntArray, TokenTree

_RECENT = 0.1
"""Weight of the latest round in how many tokens one brings."""


class HeldUp(NamedTuple):
    """Sessions that wait while others draft. root_only: seconds of a forward of everybody's root,
    which is what they were promised.
    """

    sessions: Sequence[Session]
    root_only: float

    def tokens(self, seconds: float) -> float:
        """That each is promised in this time."""
        return LEAST_RATE * seconds / max(self.root_only, 1e-9)

    def can_wait(self, seconds: float) -> bool:
        """Each has banked what it is promised meanwhile."""
        needed = self.tokens(seconds)
        return all(session.banked >= needed for session in self.sessions)

    def waited(self, seconds: float) -> None:
        """It is taken from what they have banked."""
        for session in self.sessions:
            session.bank(-self.tokens(seconds))


class CallRecord:
    """What was measured of one kind of call. tokens: that one brings a session; at first 0."""

    def __init__(self) -> None:
        self.tokens = 0.0
        self._latest: dict[int, deque[float]] = {}  # seconds, by sessions in the call

    def seconds(self, sessions: int, nodes: int, forward: Seconds) -> float | None:
        """Of a call for so many; None where none was measured. For another number of sessions it is
        told from one that was, as forwards of so many nodes grow.
        """
        if not self._latest:
            return None
        nearest = min(self._latest, key=lambda known: abs(known - sessions))
        growth = forward(sessions, nodes) / max(forward(nearest, nodes), 1e-9)
        return median(self._latest[nearest]) * growth

    def took(self, sessions: int, seconds: float) -> None:
        """A call for so many took so long."""
        self._latest.setdefault(sessions, deque(maxlen=KEPT)).append(seconds)

    def brought(self, tokens: int) -> None:
        """One session got so many."""
        self.tokens += (_RECENT if self.tokens else 1.0) * (tokens - self.tokens)


class DraftShare(Share):
    """One session's part of a call that nobody else takes part in than who asked for the draft.

    draft: its sequence in the graph's draft.  record: of such calls.  held_up: who waits.
    """

    def __init__(
        self,
        session: Session,
        tree: TokenTree,
        segment: Segment,
        draft: ModelSequence,
        record: CallRecord,
        held_up: HeldUp,
    ) -> None:
        super().__init__(session, tree, segment)
        self._draft, self._record, self._held_up = draft, record, held_up

    def count(self, took: Took) -> None:
        """The call is over; its first share says so for all of them."""
        if took.shares[0] is self:
            self._record.took(len(took.shares), took.seconds)
            self._held_up.waited(took.seconds)


class RoundShare(DraftShare):
    """One session's part of a round."""

    tree: GraphTree

    def settle(self, answer: IntArray, took: Took, part: float) -> Commit:
        self.count(took)
        tree, session = self.tree, self.session
        verdict = tree.filled(answer)
        queue = charge(session, len(tree), took, part)
        tokens = session.takes(tree, verdict, [HOST] * len(verdict.path), took.ended)
        self._record.brought(len(tokens))
        self._draft.commit(tree, verdict.path[: len(tokens) - 1])
        return commit(session, tokens, len(tree) - 1, queue, took)


class FeedShare(DraftShare):
    """Committed tokens that the graph's draft lacks."""

    prefill = True

    def settle(self, answer: IntArray, took: Took, part: float) -> None:
        self.count(took)
        self._draft.commit(self.tree, range(1, len(self.tree)))


class GraphRounds:
    """The drafts of sessions in the graphs of a model: the row of its draft beside the session's
    own.
    """

    def __init__(self, model: RoundModel) -> None:
        self._model = model
        self._drafts: dict[int, tuple[Session, ModelSequence]] = {}  # by row
        self._rounds, self._feeds = CallRecord(), CallRecord()
        self._held_up = HeldUp((), 0.0)

    def asked(self, turn: Turn) -> Ask:
        """The call that makes this turn."""
        if turn.feeds:
            return self._model.draft.choose
        return self._model.rounds if turn.rounds else self._model.choose

    def takes(self, ready: Sequence[Session], seconds: Seconds) -> list[Session]:
        """Those whose next forward is a round, or a chunk for its draft. Where others would have to
        wait for it too long, or where it does not pay, there are none.

        ready: all whose next forward can be made now.  seconds: of a forward.
        """
        drafted = [one for one in ready if self._serves(one)]
        others = [one for one in ready if one not in drafted]
        self._held_up = HeldUp(others, seconds(len(ready), 1)) if ready else HeldUp((), 0.0)
        if not drafted or not others:
            return drafted
        unfed = [one for one in drafted if self.lacks(one)]
        feeding = self._feeding(unfed, seconds)
        drafting = self._rounds.seconds(len(drafted), self._model.shape.nodes, seconds)
        if drafting is None or not self._pays(len(drafted), feeding + drafting):
            return []
        far = len(unfed) == len(drafted) and all(self._is_far(one) for one in unfed)
        return drafted if self._held_up.can_wait(feeding if far else feeding + drafting) else []

    def lacks(self, session: Session) -> bool:
        """Whether the draft has to be fed before the next round."""
        return self._draft(session).length < session.length - 1

    def chunk(self, session: Session) -> FeedShare:
        """What the draft is fed of the session in one call."""
        draft, end = self._draft(session), session.length - 1
        tree = TokenTree.chain(session.tokens[draft.length : min(draft.length + self._chunk, end)])
        segment = draft.prepare_chunk(tree)
        return FeedShare(session, tree, segment, draft, self._feeds, self._held_up)

    def share(self, session: Session) -> RoundShare:
        """The session's part of the next round. The draft lacks nothing."""
        draft, shape = self._draft(session), self._model.shape
        limit = min(max(session.allowed - 1, 0), shape.depth)
        part = draft.prepare(inner_tree(shape, session.root))
        part = part._replace(positions=np.minimum(part.positions, draft.length + limit))
        tree = GraphTree(shape, session.root, limit, part)
        segment = session.prepare(tree)._replace(draft=part)
        return RoundShare(session, tree, segment, draft, self._rounds, self._held_up)

    def _serves(self, session: Session) -> bool:
        """Whether it asked for rounds and can pay for one: all nodes are computed in any case."""
        order, nodes = session.order, self._model.shape.nodes
        if order is None or not session.drafted_beside:
            return False
        left = order.most_nodes - session.spent.nodes if order.most_nodes else nodes
        return nodes <= min(left, session.tree_nodes or nodes)

    @property
    def _chunk(self) -> int:
        """Tokens that the draft is fed at a time; a leaf that it never saw may ride along."""
        return self._model.draft.max_nodes - 1

    def _is_far(self, session: Session) -> bool:
        """More than a chunk lies before its next round."""
        return self._draft(session).length + self._chunk < session.length - 1

    def _feeding(self, unfed: Sequence[Session], seconds: Seconds) -> float:
        """Seconds of the next chunk of these; before one was measured, of one for the target."""
        if not unfed:
            return 0.0
        known = self._feeds.seconds(len(unfed), self._chunk, seconds)
        return seconds(len(unfed), self._chunk) if known is None else known

    def _pays(self, drafted: int, seconds: float) -> bool:
        """A round that takes so long, its chunk included, brings more tokens a second than
        forwards in which everybody gets one.
        """
        everybody = drafted + len(self._held_up.sessions)
        alone = everybody * seconds / max(self._held_up.root_only, 1e-9)
        return drafted * self._rounds.tokens > LEAST_GAIN * alone

    def _draft(self, session: Session) -> ModelSequence:
        """The sequence of a session that has a row."""
        row = session.live.row
        owner, sequence = self._drafts.get(row, (None, None))
        if sequence is None or owner is not session:
            sequence = ModelSequence(self._model.draft, row, session.params)
            self._drafts[row] = session, sequence
        return sequence
