"""Graph rounds: forward passes in which a graph of the target both drafts and verifies.

A session takes part if its order requests the draft on the target's device. A round delays all
other sessions. So if there are any, a round runs only if it gives more tokens per second than a
forward pass of all sessions, and the delayed sessions have service credit for its time. Tokens that
the draft lacks are prefilled in chunks, each a separate forward pass under the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.sequence import ModelSequence
from inference.engine.forward import BatchItem, Commit, Forward, ModelCall
from inference.engine.scheduler import DelayedSessions, ForwardKind, ForwardSeconds
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.proposer import COLOCATED
from inference.times import Table, Times
from inference.tree.token_tree import IntArray, TokenTree, Verdict
from inference.tree.tree_shape import NONE, Branches

_RECENT = 0.1
"""Weight of the latest round in the moving average of tokens per round."""


@runtime_checkable
class RoundModel(Model, Protocol):
    """A Model that also runs a whole round in one call.

    Its compiled draft grows a tree; the target verifies the tree and returns the accepted tokens.
    """

    shape: Branches  # the shape of every tree

    @property
    def draft(self) -> Model:
        """The draft as a Model, which must be fed a session's tokens before its first round."""
        ...

    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """Run a round for each segment, which also holds the draft's segment. Return for each an
        array that read_answer() of inference/engine/colocated/graph_rounds.py takes.

        Tokens below the roots are ignored: the draft replaces them. The rows must be distinct in
        both models.
        """
        ...


class RoundItem(BatchItem):
    """One session's part of a graph round.

    draft: the session's sequence on the draft in the graph
    limit: maximum accepted candidates
    count_tokens: called with the number of tokens that the session gets in the round
    """

    def __init__(
        self,
        session: Session,
        tree: TokenTree,
        segment: Segment,
        draft: ModelSequence,
        limit: int,
        count_tokens: Callable[[int], None],
    ) -> None:
        super().__init__(session, tree, segment)
        self._draft, self._limit, self._count_tokens = draft, limit, count_tokens

    def settle(self, answer: IntArray, forward: Forward, charge: float) -> Commit:
        session = self.session
        tree, verdict = read_answer(self.tree, answer, self._limit)
        claimed = session.commit(tree, verdict, forward.ended, proposer=COLOCATED)
        self._count_tokens(len(claimed))
        self._draft.commit(tree, verdict.path[: len(claimed) - 1])
        return forward.commit(session, claimed, self.nodes, charge)


class FeedItem(BatchItem):
    """One session's part of a call that feeds the draft the committed tokens that it lacks.

    draft: the session's sequence on the draft in the graph
    """

    prefill = True

    def __init__(
        self, session: Session, tree: TokenTree, segment: Segment, draft: ModelSequence
    ) -> None:
        super().__init__(session, tree, segment)
        self._draft = draft

    def settle(self, answer: IntArray, forward: Forward, charge: float) -> None:
        self._draft.commit(self.tree, range(1, len(self.tree)))


class GraphRounds:
    """The draft in a model's graphs, with one draft sequence per session.

    A session's draft sequence has the same row number as the session itself.

    times: seconds of the target's forward passes. They are also assumed for the draft's chunks, and
        for how calls grow with the number of sessions, until these are measured.
    """

    def __init__(self, model: RoundModel, times: Table | None = None) -> None:
        self._model = model
        self._drafts: dict[int, tuple[Session, ModelSequence]] = {}  # by row
        self._rounds, self._feeds = Times(times), Times(times)
        self._tokens = 0.0  # moving average of a session's tokens in a round; 0 before the first

    def call_of(self, kind: ForwardKind) -> ModelCall:
        """Return the model's method for a kind of forward pass."""
        if kind is ForwardKind.FEEDS:
            return self._model.draft.choose
        return self._model.rounds if kind is ForwardKind.ROUNDS else self._model.choose

    def record(self, kind: ForwardKind, sessions: int, seconds: float) -> None:
        """Record the seconds of a round or a feed, and its number of sessions."""
        if kind is ForwardKind.FEEDS:
            self._feeds.observe(sessions, self._chunk, seconds)
        else:
            self._rounds.observe(sessions, self._model.shape.nodes, seconds)

    def select(
        self, ready: Sequence[Session], seconds: ForwardSeconds
    ) -> tuple[list[Session], list[Session]]:
        """Return the sessions whose next pass is a round, and those whose draft must be fed first.

        Both are empty if a round does not pay, or would delay other sessions too long.

        ready: all sessions that a forward pass can include now.
        seconds: time of a forward pass by rows and nodes.
        """
        drafted = [session for session in ready if self._serves(session)]
        undrafted = [session for session in ready if session not in drafted]
        unfed = [session for session in drafted if self._draft(session).length < session.length - 1]
        fed = [session for session in drafted if session not in unfed]
        if not undrafted or self._allows_delay(fed, unfed, undrafted, seconds):
            return fed, unfed
        return [], []

    def _allows_delay(
        self,
        fed: Sequence[Session],
        unfed: Sequence[Session],
        undrafted: Sequence[Session],
        seconds: ForwardSeconds,
    ) -> bool:
        """Whether the next round pays, and the other sessions have service credit for it."""
        drafted = len(fed) + len(unfed)
        if not drafted:
            return False
        delayed = DelayedSessions(undrafted, seconds(drafted + len(undrafted), 1))
        feeding = self._feeds.seconds(len(unfed), self._chunk) if unfed else 0.0
        drafting = self._rounds.seconds(drafted, self._model.shape.nodes)
        if not self._pays(drafted, delayed, feeding + drafting):
            return False
        far = not fed and all(self._is_far(session) for session in unfed)
        return delayed.can_wait(feeding if far else feeding + drafting)

    def feed_item(self, session: Session) -> FeedItem:
        """Return the item that feeds the draft the session's next chunk."""
        draft, end = self._draft(session), session.length - 1
        tree = TokenTree.chain(session.tokens[draft.length : min(draft.length + self._chunk, end)])
        return FeedItem(session, tree, draft.prepare_chunk(tree), draft)

    def round_item(self, session: Session) -> RoundItem:
        """Return the session's part of the next round. The draft must have all its tokens."""
        draft, shape = self._draft(session), self._model.shape
        limit = min(max(session.allowed - 1, 0), shape.depth)
        tree = blank_tree(shape, session.root)
        draft_segment = _within(draft.prepare(tree.prefix(shape.inner)), draft.length + limit)
        segment = _within(session.prepare(tree), session.live.length + limit)
        segment = segment._replace(beside=draft_segment)
        return RoundItem(session, tree, segment, draft, limit, self._count_tokens)

    def _count_tokens(self, tokens: int) -> None:
        self._tokens += (_RECENT if self._tokens else 1.0) * (tokens - self._tokens)

    def _serves(self, session: Session) -> bool:
        """Whether a session requests rounds, may have a round's nodes in a forward pass, and has no
        rule: graphs of rounds neither adjust nor report logits.
        """
        nodes, asks = self._model.shape.nodes, session.drafted_beside
        fits = nodes <= (session.tree_nodes or nodes)
        return asks and fits and not session.params.needs_rule

    @property
    def _chunk(self) -> int:
        """Return the tokens in a chunk for the draft; one place is left for a pending leaf."""
        return self._model.draft.max_nodes - 1

    def _is_far(self, session: Session) -> bool:
        """Whether the draft needs more than one chunk before the session's next round."""
        return self._draft(session).length + self._chunk < session.length - 1

    def _pays(self, drafted: int, delayed: DelayedSessions, seconds: float) -> bool:
        """Whether a round gives more tokens per second than root-only passes of all sessions.
        False before the first round.

        seconds: time of the round, its chunk included.
        """
        everybody = drafted + len(delayed.sessions)
        alone = everybody * seconds / max(delayed.root_only, 1e-9)
        return drafted * self._tokens > TUNING.min_gain * alone

    def _draft(self, session: Session) -> ModelSequence:
        row = session.live.row
        owner, sequence = self._drafts.get(row, (None, None))
        if sequence is None or owner is not session:
            sequence = ModelSequence(self._model.draft, row, session.params)
            self._drafts[row] = session, sequence
        return sequence


def _within(segment: Segment, last: int) -> Segment:
    """Return the segment with positions clipped to `last`, the last of the sequence."""
    return segment._replace(positions=np.minimum(segment.positions, last))


def blank_tree(shape: Branches, root: int = 0) -> TokenTree:
    """Return a tree of this shape before drafting, with placeholders for tokens below the root."""
    tokens = np.arange(shape.nodes, dtype=np.int32)  # distinct, because siblings must be
    tokens[0] = root
    return TokenTree(tokens, np.array(shape.parents, dtype=np.int32))


def read_answer(blank: TokenTree, answer: NDArray[Any], limit: int) -> tuple[TokenTree, Verdict]:
    """Return the tree that a graph drafted, and the verdict on it, cut to the limit.

    blank: the input tree of the graph, by blank_tree()
    answer: [nodes - 1 + depth + 1] int32: the drafted tokens, the accepted node at each depth (or
        NONE), and the target's token after the accepted nodes.
    limit: maximum accepted candidates

    Raises InvalidRequest when siblings carry equal tokens.
    """
    drafted, path, next_token = np.split(answer, [len(blank) - 1, len(answer) - 1])
    tokens = np.concatenate([blank.tokens[:1], drafted.astype(np.int32)])
    tree = TokenTree(tokens, blank.parents)
    accepted = tuple(int(node) for node in path if node != NONE)
    if len(accepted) > limit:
        return tree, Verdict(accepted[:limit], int(tokens[accepted[limit]]))
    return tree, Verdict(accepted, int(next_token[0]))
