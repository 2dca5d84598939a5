"""One forward pass of the engine: each session's item of the batch, its result, and the events that
report it.
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
from inference.tree.accept import Verdict, accept_matches
from inference.tree.candidates import Claims
from inference.tree.token_tree import IntArray, TokenTree

ModelCall: TypeAlias = Callable[[Sequence[Segment]], Sequence[Chosen | IntArray]]
"""A call of the model: one answer per segment."""


class BatchItem(ABC):
    """One session's part of a forward pass.

    prefill: whether the item's tokens are committed already, so that nothing is chosen.
    tree: the nodes that are computed.
    nodes: their number.
    segment: the tree in the form that the model takes.
    """

    prefill: ClassVar[bool] = False

    def __init__(self, session: Session, tree: TokenTree, segment: Segment) -> None:
        self.session, self.tree, self.segment = session, tree, segment
        self.nodes = len(tree)

    @abstractmethod
    def settle(self, answer: Any, forward: Forward, charge: float) -> Commit | None:
        """Apply the model's answer to the session; returns None when no token was committed.

        answer: the model's choices, or a graph's answer, or what `read` returned for it.
        charge: seconds of the forward pass that the session is charged.
        """


class ChunkItem(BatchItem):
    """The item of a session whose prompt is being prefilled: one chunk of it."""

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

    expected: candidates that the target is expected to accept, by calibrated values.
    """

    def __init__(self, session: Session, tree: TokenTree, expected: float) -> None:
        self._expected = expected
        super().__init__(session, tree, session.prepare(tree))

    def settle(
        self, answer: tuple[Verdict, LogProbs | None], forward: Forward, charge: float
    ) -> Commit:
        session, (verdict, scores) = self.session, answer
        queue = forward.charge(session, self.nodes, charge)
        session.record.observe(self._expected, len(verdict.path))
        claimed = session.commit(self.tree, verdict, forward.ended, scores=scores)
        return forward.commit(session, claimed, self.nodes, queue)


def read(items: Sequence[BatchItem], answers: Sequence[Any]) -> list[Any]:
    """The answers of a forward pass, with the verdict in place of the tokens chosen in a tree."""
    found = list(answers)
    trees = [
        index
        for index, item in enumerate(items)
        if isinstance(item, TreeItem) and not isinstance(answers[index], Exception)
    ]
    if trees:
        walked = accept_matches([items[i].tree for i in trees], [answers[i].tokens for i in trees])
        for index, verdict in zip(trees, walked, strict=True):
            found[index] = verdict, answers[index].logprobs
    return found


class Commit(NamedTuple):
    """Event: a forward pass committed tokens of a session."""

    session: Session
    tokens: Sequence[int]
    claimed: Sequence[Claims]  # [tokens] chances that proposers claimed where each was chosen
    candidates: int  # nodes below the root that were computed
    accepted: int  # candidates that the target accepted
    queue_seconds: float  # time that the session waited for the forward pass
    model_seconds: float  # time of the forward pass
    credit: int  # tokens that the session may still be ahead of its client


class Forward(NamedTuple):
    """A forward pass that the model has completed. Also the event of it."""

    items: Sequence[BatchItem]
    padded: Shape  # rows and nodes of each, padding included
    started: float  # seconds of the engine's clock
    ended: float  # seconds of the engine's clock
    engine_seconds: float = 0.0  # the engine's own work around the call: the device waits

    @property
    def prefill(self) -> bool:
        """Whether it computed chunks of prompts, for the target or for the draft in its graphs."""
        return self.items[0].prefill

    @property
    def rows(self) -> int:
        """Rows without padding."""
        return len(self.items)

    @property
    def nodes(self) -> int:
        """Nodes of all rows, without padding."""
        return sum(item.nodes for item in self.items)

    @property
    def model_seconds(self) -> float:
        """Time of the model's call."""
        return self.ended - self.started

    def charges(self, seconds: ForwardSeconds) -> list[float]:
        """[items] seconds charged to each item, which add up to the forward pass's seconds.

        The time of a root-only forward pass is divided evenly, and the rest by nodes below the
        root.

        seconds: time of a forward pass by rows and nodes.
        """
        below = [item.nodes - 1 for item in self.items]
        rows, nodes = self.rows, sum(below)
        whole = max(seconds(*self.padded), 1e-9)
        even = min(seconds(rows, 1) / whole, 1.0) if nodes else 1.0
        took = self.model_seconds
        root, node = took * even / rows, took * (1 - even) / max(nodes, 1)
        charges = [root + own * node for own in below]
        assert math.isclose(sum(charges), took, abs_tol=1e-9), "charges do not add up"
        return charges

    def charge(self, session: Session, nodes: int, charge: float) -> float:
        """Charge the forward pass to a session; returns the seconds that it waited for the pass.

        nodes: the session's nodes, the root included.
        """
        since = session.ready_since
        queue = max(0.0, self.started - since) if since else 0.0
        session.spent.add(Spent(nodes, 1, int(nodes == 1), queue, self.model_seconds, charge))
        session.ready_since = 0.0
        return queue

    def commit(
        self, session: Session, claimed: Sequence[Claims], nodes: int, queue: float
    ) -> Commit:
        """The event of a session's new tokens.

        claimed: [tokens] as Session.commit() returned them.
        nodes, queue: as for and from `charge`.
        """
        tokens = len(claimed)
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
"""MakeItem(*part): the item of a session's part of a plan. Raises OutriderError."""


def prepare(
    plan: BatchPlan, make: MakeItem
) -> tuple[list[BatchItem], list[tuple[Session, OutriderError]]]:
    """The items of all sessions of a plan, and the sessions that cannot take part."""
    items: list[BatchItem] = []
    failed: list[tuple[Session, OutriderError]] = []
    for part in plan.parts:
        try:
            items.append(make(*part))
        except OutriderError as error:
            failed.append((part[0], error))
    return items, failed
