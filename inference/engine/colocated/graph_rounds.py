"""Graph rounds: a kind of forward pass in which one graph of the target drafts and verifies.

It needs a draft that is compiled into the target's graphs. A session takes part when its order
requests the draft beside the target. A round delays all other sessions. So beside them a round runs
only under two conditions: it gives more tokens a second than a forward pass of all sessions, and
the delayed sessions have service credit for its time. Otherwise all sessions share forward passes
with their own candidates. Tokens that the draft lacks (a prompt, or those committed by such forward
passes) are prefilled in chunks. Each chunk is a forward pass of its own, under the same conditions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from inference.backends import Model, Segment
from inference.backends.sequence import ModelSequence
from inference.engine.forward import BatchItem, Commit, Forward, ModelCall
from inference.engine.scheduler import ForwardKind, ForwardSeconds, HeldUp
from inference.engine.sessions.session import Session
from inference.engine.tuning import TUNING
from inference.proposer import COLOCATED
from inference.times import Table, Times
from inference.tree.accept import Verdict
from inference.tree.token_tree import IntArray, TokenTree
from inference.tree.tree_shape import NONE, Branches

_RECENT = 0.1
"""Weight of the latest round in the moving average of tokens per round."""


@runtime_checkable
class RoundModel(Model, Protocol):
    """A Model that also makes whole rounds in one call.

    Its own draft grows a tree, and the target verifies it and returns the accepted tokens.
    """

    shape: Branches  # the shape of every tree

    @property
    def draft(self) -> Model:
        """The draft as a Model of its own: a text's tokens are fed to it before the first round."""
        ...

    def rounds(self, segments: Sequence[Segment]) -> list[IntArray]:
        """Run a round for each segment, which has the draft's beside it. Return what
        read_answer() of inference/engine/colocated/graph_rounds.py takes, one array a segment.

        Tokens below the roots are ignored: the draft replaces them. Rows of both models must be
        distinct.
        """
        ...


class RoundItem(BatchItem):
    """One session's part of a graph round.

    draft: the session's sequence on the draft in the graph
    limit: maximum accepted candidates
    count_tokens: records the tokens of a session in a round
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
        queue = forward.charge(session, self.nodes, charge)
        claimed = session.commit(tree, verdict, forward.ended, proposer=COLOCATED)
        self._count_tokens(len(claimed))
        self._draft.commit(tree, verdict.path[: len(claimed) - 1])
        return forward.commit(session, claimed, self.nodes, queue)


class FeedItem(BatchItem):
    """One session's part of a call that feeds the draft committed tokens that it lacks.

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

    times: seconds of the target's forward passes. Until they are measured, a chunk for the draft
        takes as long as one for the target, and calls for more sessions grow as its passes do.
    """

    def __init__(self, model: RoundModel, times: Table | None = None) -> None:
        self._model = model
        self._drafts: dict[int, tuple[Session, ModelSequence]] = {}  # by row
        self._rounds, self._feeds = Times(times), Times(times)
        self._tokens = 0.0  # moving average of a session's tokens in a round; 0 before the first

    def call_of(self, kind: ForwardKind) -> ModelCall:
        """The model's call for a kind of forward pass."""
        if kind is ForwardKind.FEEDS:
            return self._model.draft.choose
        return self._model.rounds if kind is ForwardKind.ROUNDS else self._model.choose

    def record(self, kind: ForwardKind, sessions: int, seconds: float) -> None:
        """Record the seconds of a round or of a feed for so many sessions."""
        if kind is ForwardKind.FEEDS:
            self._feeds.observe(sessions, self._chunk, seconds)
        else:
            self._rounds.observe(sessions, self._model.shape.nodes, seconds)

    def select(
        self, ready: Sequence[Session], seconds: ForwardSeconds
    ) -> tuple[list[Session], list[Session]]:
        """The sessions whose next forward pass is a round, and those whose draft is fed first.

        Empty when a round does not pay, or would delay other sessions too long.

        ready: all sessions whose next forward pass can be made now.
        seconds: time of a forward pass by rows and nodes.
        """
        drafted = [one for one in ready if self._serves(one)]
        others = [one for one in ready if one not in drafted]
        unfed = [one for one in drafted if self._draft(one).length < one.length - 1]
        fed = [one for one in drafted if one not in unfed]
        if not others or self._may_delay(fed, unfed, others, seconds):
            return fed, unfed
        return [], []

    def _may_delay(
        self,
        fed: Sequence[Session],
        unfed: Sequence[Session],
        others: Sequence[Session],
        seconds: ForwardSeconds,
    ) -> bool:
        """Whether the next round pays, and the others have service credit for it."""
        drafted = len(fed) + len(unfed)
        if not drafted:
            return False
        held_up = HeldUp(others, seconds(drafted + len(others), 1))
        feeding = self._feeds.seconds(len(unfed), self._chunk) if unfed else 0.0
        drafting = self._rounds.seconds(drafted, self._model.shape.nodes)
        if not self._pays(drafted, held_up, feeding + drafting):
            return False
        far = not fed and all(self._is_far(one) for one in unfed)
        return held_up.can_wait(feeding if far else feeding + drafting)

    def feed_item(self, session: Session) -> FeedItem:
        """The item that feeds the draft the next chunk of the session."""
        draft, end = self._draft(session), session.length - 1
        tree = TokenTree.chain(session.tokens[draft.length : min(draft.length + self._chunk, end)])
        return FeedItem(session, tree, draft.prepare_chunk(tree), draft)

    def round_item(self, session: Session) -> RoundItem:
        """The session's part of the next round; the draft must lack no token of it."""
        draft, shape = self._draft(session), self._model.shape
        limit = min(max(session.allowed - 1, 0), shape.depth)
        tree = blank_tree(shape, session.root)
        part = _within(draft.prepare(tree.prefix(shape.inner)), draft.length + limit)
        segment = _within(session.prepare(tree), session.live.length + limit)
        segment = segment._replace(beside=part)
        return RoundItem(session, tree, segment, draft, limit, self._count_tokens)

    def _count_tokens(self, tokens: int) -> None:
        self._tokens += (_RECENT if self._tokens else 1.0) * (tokens - self._tokens)

    def _serves(self, session: Session) -> bool:
        """Whether a session requests rounds and may have a round's nodes in a forward pass.

        Graphs of rounds adjust no logits and report none: a text with a rule has open forward
        passes.
        """
        nodes, asks = self._model.shape.nodes, session.drafted_beside
        fits = nodes <= (session.tree_nodes or nodes)
        return asks and fits and not session.params.needs_rule

    @property
    def _chunk(self) -> int:
        """Tokens in one chunk for the draft; one place is left for a pending leaf."""
        return self._model.draft.max_nodes - 1

    def _is_far(self, session: Session) -> bool:
        """Whether the draft needs more than one chunk before the session's next round."""
        return self._draft(session).length + self._chunk < session.length - 1

    def _pays(self, drafted: int, held_up: HeldUp, seconds: float) -> bool:
        """Whether a round gives more tokens a second than root-only forward passes of all sessions.
        False before the first round.

        seconds: time of the round, its chunk included.
        """
        everybody = drafted + len(held_up.sessions)
        alone = everybody * seconds / max(held_up.root_only, 1e-9)
        return drafted * self._tokens > TUNING.least_gain * alone

    def _draft(self, session: Session) -> ModelSequence:
        """The draft's sequence of a session, which must have a row."""
        row = session.live.row
        owner, sequence = self._drafts.get(row, (None, None))
        if sequence is None or owner is not session:
            sequence = ModelSequence(self._model.draft, row, session.params)
            self._drafts[row] = session, sequence
        return sequence


def _within(segment: Segment, last: int) -> Segment:
    """The segment with no position beyond `last`, where the text ends. Nodes there are ignored."""
    return segment._replace(positions=np.minimum(segment.positions, last))


def blank_tree(shape: Branches, root: int = 0) -> TokenTree:
    """A tree of the shape before it is drafted: every token below the root is a placeholder."""
    tokens = np.arange(shape.nodes, dtype=np.int32)  # distinct, because siblings must be
    tokens[0] = root
    return TokenTree(tokens, np.array(shape.parents, dtype=np.int32))


def read_answer(asked: TokenTree, answer: NDArray[Any], limit: int) -> tuple[TokenTree, Verdict]:
    """Return the tree that a graph drafted, and the verdict on it, cut to the limit.

    asked: the input tree of the graph, by blank_tree()
    answer: [nodes - 1 + depth + 1] int32. It holds the drafted tokens, the accepted node of each
        depth (or NONE), and the target's token after them.
    limit: maximum accepted candidates

    Raises InvalidRequest when siblings carry equal tokens.
    """
    drafted, path, next_token = np.split(answer, [len(asked) - 1, len(answer) - 1])
    tokens = np.concatenate([asked.tokens[:1], drafted.astype(np.int32)])
    tree = TokenTree(tokens, asked.parents)
    accepted = tuple(int(node) for node in path if node != NONE)
    if len(accepted) > limit:
        return tree, Verdict(accepted[:limit], int(tokens[accepted[limit]]))
    return tree, Verdict(accepted, int(next_token[0]))
