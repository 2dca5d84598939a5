"""One client's session on the target: committed tokens, candidates, order, credit and charges.

Only the engine changes a session, under its lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from inference.backends import LogProbs, Model, Scoring, Segment
from inference.backends.sequence import ModelSequence
from inference.engine.calibration import Calibration, OwnRecord, proposers_of
from inference.engine.prefix_cache import CacheRow
from inference.engine.sessions.log_probs import PromptScores, read_scores
from inference.engine.tuning import TUNING
from inference.errors import InvalidRequest, LimitExceeded
from inference.order import (
    CREDIT_SECONDS,
    LEAST_CREDIT,
    MOST_CREDIT,
    Decode,
    End,
    Opened,
    Pace,
    Progress,
    Spent,
)
from inference.proposer import NOBODY, Nodes
from inference.sampling import SamplingParams
from inference.text_log import TextLog
from inference.token_rule import Adjustment, TokenRule
from inference.tree.accept import Verdict
from inference.tree.candidates import CandidateTree, Claims, Dropped, ProposalStream
from inference.tree.token_tree import TokenTree

_RATE_WEIGHT = 0.1  # of the latest forward pass in the moving average of tokens a second


Callback: TypeAlias = Callable[[], None]
"""A deferred call, made after the engine's lock was released."""


def promise() -> Future[Any]:
    """A future that cannot be cancelled."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class Opening:
    """A prompt to prefill. The future is done when its keys are cached."""

    asked: float  # when the session was opened, in seconds of the engine's clock
    future: Future[Opened] = field(default_factory=promise)


class Session(TextLog):
    """A session is its log; everything else can be recomputed. Times are in seconds.

    The last committed token is the root of the candidates.

    sharing: name of the group of tenants that reuse each other's cached prefixes.
    limit: tokens that the session may have, prompt included.
    row, sequence: where its keys are; None while it waits for a row.
    acknowledged: tokens that its client has acknowledged.
    service_credit: tokens that it is ahead of its root-only rate; below 0: its deficit.
    ready_since: when it began to wait for a forward pass; 0: it does not wait.
    got_row: when its present turn on a row began.
    record: accepted candidates of its own, of those that were expected to be.
    room: candidates that a forward pass computes for it at present.
    rule: adjusts its logits; None for no adjustment.
    rule_error: error of its rule in a forward pass shared with other sessions.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        tenant: str,
        limit: int,
        calibration: Calibration,
        sharing: str | None = None,
        rule: TokenRule | None = None,
    ) -> None:
        super().__init__(prompt)
        self.params, self.tenant, self.limit = params, tenant, limit
        self.sharing = tenant if sharing is None else sharing
        self.acknowledged = len(prompt)
        self.rule, self.prompt_scores = rule, PromptScores(params, len(prompt))
        self.rule_error: InvalidRequest | None = None
        self.candidates, self.calibration = CandidateTree(self.tokens), calibration
        self.order: Decode | None = None
        self._go_base = -1  # position of the root that go() requested
        self.opening: Opening | None = None
        self.row: CacheRow | None = None
        self.sequence: ModelSequence | None = None
        self.reused, self.prefill_seconds = 0, 0.0
        self.closed: Exception | None = None
        self.detached = False  # its client has no open stream
        self.tree_nodes: int | None = None  # nodes in one forward pass, if fewer than the engine's
        self._drained, self._may_commit = False, 0  # tokens of the running pass; 0: none
        self.spent, self.record, self.service_credit, self.room = Spent(), OwnRecord(), 0.0, 0
        self.ready_since = self.got_row = 0.0
        self._rate = self._last_at = 0.0

    @property
    def root(self) -> int:
        return self.tokens[-1]

    @property
    def live(self) -> ModelSequence:
        assert self.sequence is not None, "the session has no row"
        return self.sequence

    @property
    def missing(self) -> int:
        """Committed tokens below the root whose keys are not in the row."""
        return len(self.tokens) - 1 - self.live.cached

    @property
    def credit(self) -> int:
        """Tokens that the target may be ahead of the acknowledged length."""
        if self.order is not None and self.order.credit:
            return min(self.order.credit, MOST_CREDIT)
        return round(min(max(LEAST_CREDIT, CREDIT_SECONDS * self._rate), MOST_CREDIT))

    @property
    def allowed(self) -> int:
        """Tokens that the next forward pass may commit within length and credit."""
        order = self.order
        if order is None or self.end is not End.NOT:
            return 0
        return max(
            min(order.end, self.limit, self.acknowledged + self.credit) - len(self.tokens), 0
        )

    @property
    def wants_row(self) -> bool:
        """Whether it has a prompt to prefill or may decode."""
        return self.opening is not None or self.may_decode

    @property
    def may_decode(self) -> bool:
        """Whether the target may decode for it."""
        if self.closed is not None or self.detached or self.order is None:
            return False
        requested = self.order.pace is Pace.GO_ON or self._go_base == self.length - 1
        return self.allowed > 0 and requested

    @property
    def drafted_beside(self) -> bool:
        """Whether its order requests the draft beside the target."""
        return self.order is not None and self.order.beside

    @property
    def is_ready(self) -> bool:
        """Whether the next forward pass can include it, once its row has the keys of its tokens."""
        return self.opening is None and self.may_decode

    # Requests of clients.

    def set_order(self, order: Decode) -> None:
        """Set a new order. Raises LimitExceeded for a length beyond the session's limit."""
        if order.end > self.limit:
            raise LimitExceeded(
                f"a text of {order.end} tokens, prompt and output together, does not fit the "
                f"sequence length of {self.limit}"
            )
        self.order = order
        self.end = self._ended()

    def go(self, base: int) -> None:
        """With pace WAIT: request a forward pass whose root is at position `base`.

        A repeated call, or a `base` that is not the root, has no effect.
        """
        if base == self.length - 1:
            self._go_base = base

    def acknowledge(self, length: int) -> None:
        """Record that the client has so many tokens. Raises InvalidRequest for too many."""
        if length > self.length:
            raise InvalidRequest(
                f"{length} tokens were acknowledged, and the session has {self.length}"
            )
        self.acknowledged = max(self.acknowledged, length)

    def drain(self) -> None:
        """End the text with End.DRAINED, after the running forward pass if there is one."""
        self._drained = True
        if not self._may_commit:
            self.end = self._ended()

    def append(self, stream: ProposalStream, nodes: Nodes) -> Dropped:
        """Add candidates of a stream; returns how many were dropped."""
        return self.candidates.append(stream, nodes, self.calibration.trusted)

    @property
    def listeners(self) -> list[Callback]:
        """Callbacks of the session's streams, called whenever it commits tokens or ends."""
        streams = self.candidates.streams
        return [stream.wake for stream in streams if stream.wake is not None]

    def progress(self, cursor: int, stream: ProposalStream | None) -> Progress:
        """Progress beyond the first `cursor` tokens, for the reader of a stream. Costs are those of
        the whole session.
        """
        progress = self.since(cursor)
        progress.add(self.spent)
        progress.known = 0 if stream is None else stream.known
        progress.held, progress.room = self.candidates.live, self.room
        return progress

    # Steps of forward passes.

    def update_queue_clock(self, now: float) -> None:
        """Begin the queue time when the session has become ready; end it when it is not."""
        self.ready_since = (self.ready_since or now) if self.is_ready else 0.0

    def assign_row(self, row: CacheRow, model: Model, now: float) -> None:
        self.row, self.reused, self.got_row = row, len(row.tokens), now
        self.sequence = ModelSequence(model, row.index, self.params, row.slots)

    def release_row(self) -> None:
        self.row = self.sequence = None

    def next_chunk(self, limit: int) -> list[int]:
        """Up to `limit` next prompt tokens to prefill, without the root."""
        start = self.live.cached
        return self.tokens[start : min(start + limit, len(self.tokens) - 1)]

    def commit_chunk(self, chunk: TokenTree, seconds: float, now: float) -> None:
        """Commit a prefilled chunk of the prompt. The turn on the row begins at the last chunk."""
        self.live.commit(chunk, range(1, len(chunk)))
        self._remember(chunk.tokens.tolist())
        self.prefill_seconds += seconds
        self.got_row = now

    def prepare(self, tree: TokenTree) -> Segment:
        """The session's segment of a forward pass over `tree` that starts now.

        Raises LimitExceeded when the row has too few free slots.
        """
        for stream in self.candidates.streams:
            stream.known = stream.arrived
        self._may_commit = self.allowed
        segment = self.live.prepare(tree)
        if self.params.logprobs is not None:
            segment = segment._replace(scoring=Scoring(self.params.logprobs))
        if self.rule is not None:
            segment = segment._replace(rule=partial(self._adjustment, self.rule, tree))
        return segment

    def _adjustment(self, rule: TokenRule, tree: TokenTree) -> Adjustment:
        """The answer of its rule. An error is stored: the other sessions' forward pass must not
        fail.
        """
        try:
            return rule.adjust(tree, range(len(tree)))
        except InvalidRequest as error:
            self.rule_error = error
            return Adjustment.none(len(tree))

    def commit(
        self,
        tree: TokenTree,
        verdict: Verdict,
        now: float,
        *,
        scores: LogProbs | None = None,
        proposer: int | None = None,
    ) -> list[Claims]:
        """Commit the verdict of a forward pass that ends now, up to its first stop id.

        Returns what proposers claimed where each of the new tokens was chosen, [new tokens].

        scores: log-probabilities at the nodes of the tree, if requested.
        proposer: kind of the proposer of all nodes; None: those of the candidates.
        """
        path = [tree.tokens.item(node) for node in verdict.path]
        stop_ids = self.order.stop_ids if self.order is not None else ()
        stop = next((index for index, token in enumerate(path) if token in stop_ids), None)
        if stop is not None:
            verdict, path = Verdict(verdict.path[:stop], path[stop]), path[:stop]
        self.live.commit(tree, verdict.path)
        self._remember([self.root, *path])
        tokens = [*path, verdict.next_token]
        if self.rule is not None:
            self.rule.commit(tokens)
        claimed = self.candidates.commit(tokens)
        proposers = proposers_of(tokens, claimed)
        if proposer is not None:
            proposers = [*[proposer] * len(path), NOBODY]
        self.extend(tokens, proposers, read_scores(scores, [0, *verdict.path]))
        if self._last_at:
            rate = len(tokens) / max(now - self._last_at, 1e-6)
            self._rate += _RATE_WEIGHT * (rate - self._rate)
        self._last_at = now
        assert len(tokens) <= self._may_commit, "a forward commits no more than length and credit"
        assert self.live.cached == self.live.slots.used == self.length - 1, "a key is lost"
        self._may_commit, self.end = 0, self._ended()
        return claimed

    def add_service(self, tokens: float) -> None:
        """Add tokens (or subtract, if negative) to the service credit, within its bounds."""
        credit = max(self.service_credit + tokens, -TUNING.most_behind)
        self.service_credit = min(credit, TUNING.most_ahead)

    def silent_for(self, now: float) -> float:
        """Seconds since it was last ready for a forward pass: 0 while it is, infinite if it cannot
        be.
        """
        if self.wants_row:
            return 0.0
        out_of_credit = self.order is not None and self.end is End.NOT and self.allowed == 0
        if self.detached or out_of_credit:
            return math.inf
        return now - max(self._last_at, self.got_row)

    def _ended(self) -> End:
        order = self.order
        if order is None:
            return End.DRAINED if self._drained else End.NOT
        if self.made and self.root in order.stop_ids:
            return End.STOP_ID
        if self.length >= self.limit:
            return End.LIMIT
        if self.length >= order.end:
            return End.MAX_TOKENS
        return End.DRAINED if self._drained else End.NOT

    def _remember(self, tokens: Sequence[int]) -> None:
        assert self.row is not None
        self.row.tokens += tokens
