"""Graph rounds: a kind of forward in which one graph of the target drafts and verifies.

It needs a draft that is compiled into the target's graphs. A session takes part when its order asks
for the draft beside the target. A round delays the sessions that did not ask. So beside them a
round is made only under two conditions: it brings more tokens a second than a forward of all
sessions, and the delayed sessions have banked its time. Otherwise all sessions share forwards with
their own candidates. Tokens that the draft lacks (a prompt, or what such forwards committed) are
fed to it in chunks. Each chunk is a forward of its own, under the same conditions.
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
from inference.proposer import COLOCATED
from inference.tree import IntArray, TokenTree

_KEPT = 15
"""Latest calls for a number of sessions, whose median is what such a call takes."""

_RECENT = 0.1
"""Weight of the latest round in the moving average of tokens per round."""


class HeldUp(NamedTuple):
    """Sessions that are delayed while others draft. They are promised their root-only rate."""

    sessions: Sequence[Session]
    root_only: float  # seconds of a root-only forward of all ready sessions

    def tokens(self, seconds: float) -> float:
        """Tokens that each session is promised in so many seconds."""
        return LEAST_RATE * seconds / max(self.root_only, 1e-9)

    def can_wait(self, seconds: float) -> bool:
        """Whether each session has banked the tokens that a delay of so many seconds costs."""
        needed = self.tokens(seconds)
        return all(session.banked >= needed for session in self.sessions)

    def waited(self, seconds: float) -> None:
        """Subtract a delay of so many seconds from the sessions' banked tokens."""
        for session in self.sessions:
            session.bank(-self.tokens(seconds))


class CallRecord:
    """Measurements of one kind of call.

    tokens: moving average of the tokens that a call brings a session; 0 before the first.
    """

    def __init__(self) -> None:
        self.tokens = 0.0
        self._latest: dict[int, deque[float]] = {}  # sessions in a call -> seconds

    def seconds(self, sessions: int, nodes: int, forward: Seconds) -> float | None:
        """Estimated seconds of a call for so many sessions; None when none was measured.

        The nearest measured number of sessions is scaled by how forwards of `nodes` nodes grow.

        forward: seconds of a forward by rows and nodes.
        """
        if not self._latest:
            return None
        nearest = min(self._latest, key=lambda known: abs(known - sessions))
        growth = forward(sessions, nodes) / max(forward(nearest, nodes), 1e-9)
        return median(self._latest[nearest]) * growth

    def took(self, sessions: int, seconds: float) -> None:
        """Record the seconds of a call for so many sessions."""
        self._latest.setdefault(sessions, deque(maxlen=_KEPT)).append(seconds)

    def brought(self, tokens: int) -> None:
        """Record the tokens that a call brought one session."""
        self.tokens += (_RECENT if self.tokens else 1.0) * (tokens - self.tokens)


class DraftShare(Share):
    """One session's share of a call in which only sessions that asked for the draft take part.

    draft: the session's sequence on the draft in the graph.
    record: measurements of this kind of call.
    held_up: the sessions that the call delays.
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
        """Record the call's time and the delay, once per call: by its first share."""
        if took.shares[0] is self:
            self._record.took(len(took.shares), took.seconds)
            self._held_up.waited(took.seconds)


class RoundShare(DraftShare):
    """One session's share of a graph round."""

    tree: GraphTree

    def settle(self, answer: IntArray, took: Took, part: float) -> Commit:
        self.count(took)
        tree, session = self.tree, self.session
        verdict = tree.filled(answer)
        queue = charge(session, self.nodes, took, part)
        tokens = session.takes(tree, verdict, COLOCATED, took.ended)
        self._record.brought(len(tokens))
        self._draft.commit(tree, verdict.path[: len(tokens) - 1])
        return commit(session, tokens, self.nodes - 1, queue, took)


class FeedShare(DraftShare):
    """One session's share of a call that feeds the draft committed tokens that it lacks."""

    prefill = True

    def settle(self, answer: IntArray, took: Took, part: float) -> None:
        self.count(took)
        self._draft.commit(self.tree, range(1, len(self.tree)))


class GraphRounds:
    """The draft in a model's graphs, with one draft sequence per session.

    A session's draft sequence has the same row number as the session itself.
    """

    def __init__(self, model: RoundModel) -> None:
        self._model = model
        self._drafts: dict[int, tuple[Session, ModelSequence]] = {}  # by row
        self._rounds, self._feeds = CallRecord(), CallRecord()
        self._held_up = HeldUp((), 0.0)

    def asked(self, turn: Turn) -> Ask:
        """The model's call for this turn's kind of forward."""
        if turn.feeds:
            return self._model.draft.choose
        return self._model.rounds if turn.rounds else self._model.choose

    def takes(self, ready: Sequence[Session], seconds: Seconds) -> list[Session]:
        """The sessions whose next forward is a round, or a chunk for the draft.

        There are none when it does not pay, or when other sessions would be delayed too long.

        ready: all sessions whose next forward can be made now.
        seconds: time of a forward by rows and nodes.
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
        """Whether the draft must be fed tokens of the session before its next round."""
        return self._draft(session).length < session.length - 1

    def chunk(self, session: Session) -> FeedShare:
        """The share that feeds the draft the next chunk of the session."""
        draft, end = self._draft(session), session.length - 1
        tree = TokenTree.chain(session.tokens[draft.length : min(draft.length + self._chunk, end)])
        segment = draft.prepare_chunk(tree)
        return FeedShare(session, tree, segment, draft, self._feeds, self._held_up)

    def share(self, session: Session) -> RoundShare:
        """The session's share of the next round; the draft must lack no token of it."""
        draft, shape = self._draft(session), self._model.shape
        limit = min(max(session.allowed - 1, 0), shape.depth)
        part = draft.prepare(inner_tree(shape, session.root))
        part = part._replace(positions=np.minimum(part.positions, draft.length + limit))
        tree = GraphTree(shape, session.root, limit, part)
        segment = session.prepare(tree)._replace(draft=part)
        return RoundShare(session, tree, segment, draft, self._rounds, self._held_up)

    def _serves(self, session: Session) -> bool:
        """Whether a session asked for rounds and may spend one round's nodes.

        A round always computes all nodes of its tree.
        """
        order, nodes = session.order, self._model.shape.nodes
        if order is None or not session.drafted_beside:
            return False
        left = order.most_nodes - session.spent.nodes if order.most_nodes else nodes
        return nodes <= min(left, session.tree_nodes or nodes)

    @property
    def _chunk(self) -> int:
        """Tokens in one chunk for the draft; one place is left for a pending leaf."""
        return self._model.draft.max_nodes - 1

    def _is_far(self, session: Session) -> bool:
        """Whether the draft needs more than one chunk before the session's next round."""
        return self._draft(session).length + self._chunk < session.length - 1

    def _feeding(self, unfed: Sequence[Session], seconds: Seconds) -> float:
        """Seconds of the next chunk of these sessions.

        Before the first measurement it is the time of a chunk on the target.
        """
        if not unfed:
            return 0.0
        known = self._feeds.seconds(len(unfed), self._chunk, seconds)
        return seconds(len(unfed), self._chunk) if known is None else known

    def _pays(self, drafted: int, seconds: float) -> bool:
        """Whether a round brings more tokens a second than root-only forwards of all sessions.

        seconds: time of the round, its chunk included.
        """
        everybody = drafted + len(self._held_up.sessions)
        alone = everybody * seconds / max(self._held_up.root_only, 1e-9)
        return drafted * self._rounds.tokens > LEAST_GAIN * alone

    def _draft(self, session: Session) -> ModelSequence:
        """The draft's sequence of a session, which must have a row."""
        row = session.live.row
        owner, sequence = self._drafts.get(row, (None, None))
        if sequence is None or owner is not session:
            sequence = ModelSequence(self._model.draft, row, session.params)
            self._drafts[row] = session, sequence
        return sequence
