"""One forward pass of the engine: each session's item in the batch, its result, and the events
reported to listeners.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from inference.backends import Chosen, LogProbs, Segment
from inference.engine.scheduler import BatchPlan, ForwardSeconds
from inference.engine.sessions.session import Session
from inference.errors import OutriderError
from inference.order import Spent
from inference.times import Shape
from inference.tree.candidates import Claims
from inference.tree.token_tree import IntArray, TokenTree, Verdict, accept_matches

ModelCall: TypeAlias = Callable[[Sequence[Segment]], Sequence[Chosen | IntArray]]
"""A call of the model: one answer per segment."""


class BatchItem(ABC):
    """One session's part of a forward pass.

    prefill: whether the item's tokens are committed already, so that no token is chosen.
    tree: the nodes that are computed.
    nodes: the number of these nodes.
    segment: the tree as input of the model.
    """

    prefill: ClassVar[bool] = False

    def __init__(self, session: Session, tree: TokenTree, segment: Segment) -> None:
        self.session, self.tree, self.segment = session, tree, segment
        self.nodes = len(tree)

    @abstractmethod
    def settle(self, answer: Any, forward: Forward, charge: float) -> Commit | None:
        """Apply the model's answer to the session. Return None if no token was committed.

        answer: the model's choices, or a graph's answer, or the result of `read`.
        charge: seconds of the forward pass that the session is charged.
        """


class ChunkItem(BatchItem):
    """The item of a session whose prompt is being prefilled: one chunk of the prompt."""

    prefill = True

    def __init__(self, session: Session, chunk: Sequence[int]) -> None:
        tree, self._first = TokenTree.chain(chunk), session.live.cached
        following = session.tokens[self._first + 1 :][: len(chunk)]
        segment = session.prompt_scores.of_chunk(session.live.prepare_chunk(tree), following)
        super().__init__(session, tree, segment)

    def settle(self, answer: Chosen, forward: Forward, charge: float) -> None:
        self.session.prompt_scores.take(answer.logprobs, self._first)
        self.session.commit_chunk(self.tree, forward.model_seconds, forward.ended)


class TreeItem(BatchItem):
    """The item of a decoding session: its root and its best candidates.

    expected: expected number of accepted candidates, by calibrated probabilities.
    """

    def __init__(self, session: Session, tree: TokenTree, expected: float) -> None:
        self._expected = expected
        super().__init__(session, tree, session.prepare(tree))

    def settle(
        self, answer: tuple[Verdict, LogProbs | None], forward: Forward, charge: float
    ) -> Commit:
        session, (verdict, scores) = self.session, answer
        session.record.observe(self._expected, len(verdict.path))
        claimed = session.commit(self.tree, verdict, forward.ended, scores=scores)
        return forward.commit(session, claimed, self.nodes, charge)


def read(items: Sequence[BatchItem], answers: Sequence[Any]) -> list[Any]:
    """Return a pass's answers, with the tokens chosen in each tree replaced by a verdict."""
    results = list(answers)
    trees = [
        index
        for index, item in enumerate(items)
        if isinstance(item, TreeItem) and not isinstance(answers[index], Exception)
    ]
    if trees:
        walked = accept_matches([items[i].tree for i in trees], [answers[i].tokens for i in trees])
        for index, verdict in zip(trees, walked, strict=True):
            results[index] = verdict, answers[index].logprobs
    return results


class Commit(NamedTuple):
    """Event: a forward pass committed tokens of a session."""

    session: Session
    tokens: Sequence[int]
    claimed: Sequence[Claims]  # [tokens] probabilities that proposers claimed at its parent node
    candidates: int  # nodes below the root that were computed
    accepted: int  # candidates that the target accepted
    queue_seconds: float  # time that the session waited for the forward pass
    model_seconds: float  # time of the forward pass
    credit: int  # tokens that the session may still commit before its client acknowledges any


class Forward(NamedTuple):
    """A forward pass that the model has completed; also the event that reports the pass."""

    items: Sequence[BatchItem]
    padded: Shape  # rows and nodes of each, padding included
    started: float  # seconds of the engine's clock
    ended: float  # seconds of the engine's clock
    engine_seconds: float = 0.0  # the engine's own work around the call, while the device idles

    @property
    def prefill(self) -> bool:
        """Whether the pass prefilled prompts, for the target or for the draft in its graphs."""
        return self.items[0].prefill

    @property
    def rows(self) -> int:
        """Number of rows, without padding."""
        return len(self.items)

    @property
    def nodes(self) -> int:
        """Number of nodes in all rows, without padding."""
        return sum(item.nodes for item in self.items)

    @property
    def model_seconds(self) -> float:
        """Time of the model's call."""
        return self.ended - self.started

    def charges(self, seconds: ForwardSeconds) -> list[float]:
        """Return the seconds charged to each item; they add up to the forward pass's seconds.

        The time of a root-only forward pass is divided evenly, and the rest in proportion to nodes
        below the root.

        seconds: time of a forward pass by rows and nodes.
        """
        below = [item.nodes - 1 for item in self.items]
        rows, nodes = self.rows, sum(below)
        expected = max(seconds(*self.padded), 1e-9)
        even = min(seconds(rows, 1) / expected, 1.0) if nodes else 1.0
        took = self.model_seconds
        root, node = took * even / rows, took * (1 - even) / max(nodes, 1)
        charges = [root + count * node for count in below]
        assert math.isclose(sum(charges), took, abs_tol=1e-9), "charges do not add up"
        return charges

    def commit(
        self, session: Session, claimed: Sequence[Claims], nodes: int, charge: float
    ) -> Commit:
        """Charge the forward pass to a session. Return the event that reports its new tokens.

        claimed: [tokens] as Session.commit() returned them.
        nodes: the session's nodes, the root included.
        charge: seconds of the forward pass that the session is charged.
        """
        since, tokens = session.ready_since, len(claimed)
        queue = max(0.0, self.started - since) if since else 0.0
        session.spent.add(Spent(nodes, 1, int(nodes == 1), queue, self.model_seconds, charge))
        session.ready_since = 0.0
        return Commit(
            session,
            session.tokens[-tokens:],
            claimed,
            candidates=nodes - 1,
            accepted=tokens - 1,
            queue_seconds=queue,
            model_seconds=self.model_seconds,
            credit=session.acknowledged + session.credit - session.length,
        )


MakeItem: TypeAlias = Callable[..., BatchItem]
"""MakeItem(*entry) returns the item of a plan's entry. Raises OutriderError."""


def prepare(
    plan: BatchPlan, make: MakeItem
) -> tuple[list[BatchItem], list[tuple[Session, OutriderError]]]:
    """Return the items of all sessions of a plan, and the sessions that cannot take part."""
    items: list[BatchItem] = []
    failed: list[tuple[Session, OutriderError]] = []
    for entry in plan.entries:
        try:
            items.append(make(*entry))
        except OutriderError as error:
            failed.append((entry[0], error))
    return items, failed
