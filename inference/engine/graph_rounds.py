"""Rounds that one graph of the target drafts and verifies: a kind of forward.

A session whose order asks for the draft beside the target takes part in them where the draft is
compiled into the target's graphs. It then makes all its forwards in this way, so that the draft's
cache in the graph has no holes. What the draft lacks, a prompt mostly, it is fed in chunks, which
take turns with the other forwards.
"""

from __future__ import annotations

import numpy as np

from inference.backends import RoundModel
from inference.engine.forward import Ask, Commit, Share, Took, charge, commit
from inference.engine.graph_tree import GraphTree, inner_tree
from inference.engine.scheduler import Turn
from inference.engine.session import Session
from inference.proposer import HOST
from inference.sequence import ModelSequence
from inference.tree import IntArray, TokenTree


class RoundShare(Share):
    """One session's part of a round. draft: its sequence in the graph's draft."""

    def __init__(self, session: Session, tree: GraphTree, draft: ModelSequence) -> None:
        segment = session.prepare(tree)._replace(draft=tree.draft)
        super().__init__(session, tree, segment)
        self._round, self._draft = tree, draft

    def settle(self, answer: IntArray, took: Took, part: float) -> Commit:
        tree, session = self._round, self.session
        verdict = tree.filled(answer)
        queue = charge(session, len(tree), took, part)
        tokens = session.takes(tree, verdict, [HOST] * len(verdict.path), took.ended)
        self._draft.commit(tree, verdict.path[: len(tokens) - 1])
        return commit(session, tokens, len(tree) - 1, queue, took)


class FeedShare(Share):
    """Committed tokens that the graph's draft lacks."""

    prefill = True

    def __init__(self, session: Session, chunk: TokenTree, draft: ModelSequence) -> None:
        super().__init__(session, chunk, draft.prepare_chunk(chunk))
        self._draft = draft

    def settle(self, answer: IntArray, took: Took, part: float) -> None:
        self._draft.commit(self.tree, range(1, len(self.tree)))


class GraphRounds:
    """The drafts of sessions in the graphs of a model: the row of its draft beside the session's
    own.
    """

    def __init__(self, model: RoundModel) -> None:
        self._model = model
        self._drafts: dict[int, tuple[Session, ModelSequence]] = {}  # by row

    def asked(self, turn: Turn) -> Ask:
        """The call that makes this turn."""
        if turn.feeds:
            return self._model.draft.choose
        return self._model.rounds if turn.rounds else self._model.choose

    def serves(self, session: Session) -> bool:
        """Whether its next forward is a round: all nodes of one are computed in any case."""
        order, nodes = session.order, self._model.shape.nodes
        if order is None or not session.drafted_beside:
            return False
        left = order.most_nodes - session.spent.nodes if order.most_nodes else nodes
        return nodes <= min(left, session.tree_nodes or nodes)

    def lacks(self, session: Session) -> bool:
        """Whether the draft has to be fed before the next round."""
        return self._draft(session).length < session.length - 1

    def chunk(self, session: Session) -> FeedShare:
        """What the draft is fed of the session in one call."""
        draft, end = self._draft(session), session.length - 1
        most = self._model.draft.max_nodes - 1  # a leaf that it never saw may ride along
        chunk = session.tokens[draft.length : min(draft.length + most, end)]
        return FeedShare(session, TokenTree.chain(chunk), draft)

    def share(self, session: Session) -> RoundShare:
        """The session's part of the next round. The draft lacks nothing."""
        draft, shape = self._draft(session), self._model.shape
        limit = min(max(session.allowed - 1, 0), shape.depth)
        part = draft.prepare(inner_tree(shape, session.root))
        part = part._replace(positions=np.minimum(part.positions, draft.length + limit))
        return RoundShare(session, GraphTree(shape, session.root, limit, part), draft)

    def _draft(self, session: Session) -> ModelSequence:
        """The sequence of a session that has a row."""
        row = session.live.row
        owner, sequence = self._drafts.get(row, (None, None))
        if sequence is None or owner is not session:
            sequence = ModelSequence(self._model.draft, row, session.params)
            self._drafts[row] = session, sequence
        return sequence
