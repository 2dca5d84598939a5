"""A client's session at the target: committed tokens, candidates, order, credit and charges.

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
    MAX_CREDIT,
    MIN_CREDIT,
    Decode,
    End,
    Opened,
    Pace,
    Progress,
    Spent,
)
from inference.proposer import NOBODY
from inference.sampling import SamplingParams
from inference.text_log import TextLog
from inference.token_rule import Adjustment, TokenRule
from inference.tree.candidates import CandidateTree, Claims, ProposalStream
from inference.tree.token_tree import TokenTree, Verdict

_RATE_WEIGHT = 0.1  # weight of the latest pass in the moving average of tokens per second


Callback: TypeAlias = Callable[[], None]
"""A deferred call, made after the engine's lock is released."""


def promise() -> Future[Any]:
    """Return a future that cannot be cancelled."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class Opening:
    """A prompt to prefill. The future is done when the prompt's keys are cached."""

    since: float  # time at which the session was opened, in seconds
    future: Future[Opened] = field(default_factory=promise)


class Session(TextLog):
    """A log of tokens; the session's other state can be recomputed. Times are in seconds.

    The last committed token is the root of the candidates.

    sharing: name of the group of tenants that reuse each other's cached prefixes.
    limit: maximum tokens of the session, prompt included.
    row, sequence: the row with its keys; None while the session waits for a row.
    acknowledged: number of tokens that the client has acknowledged.
    service_credit: tokens that the session is ahead of its root-only rate; below 0: a deficit.
    ready_since: time at which it began to wait for a forward pass; 0: it does not wait.
    got_row: time at which its present turn on a row began.
    record: its accepted candidates, relative to the expected ones.
    room: maximum candidates that a forward pass computes for the session at present.
    rule: adjusts the session's logits; None for no adjustment.
    rule_error: error of the rule in a forward pass shared with other sessions.
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
        self.detached = False  # whether the client has no open stream
        self.tree_nodes: int | None = None  # maximum nodes per pass, if below the engine's maximum
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
        """Number of committed tokens before the root whose keys are not in the row."""
        return len(self.tokens) - 1 - self.live.cached

    @property
    def credit(self) -> int:
        """Maximum tokens that the target may be ahead of the acknowledged length."""
        if self.order is not None and self.order.credit:
            return min(self.order.credit, MAX_CREDIT)
        return round(min(max(MIN_CREDIT, CREDIT_SECONDS * self._rate), MAX_CREDIT))

    @property
    def allowed(self) -> int:
        """Maximum tokens that the next forward pass may commit, by length and credit."""
        order = self.order
        if order is None or self.end is not End.NOT:
            return 0
        return max(
            min(order.end, self.limit, self.acknowledged + self.credit) - len(self.tokens), 0
        )

    @property
    def wants_row(self) -> bool:
        """Whether the session has a prompt to prefill or may decode."""
        return self.opening is not None or self.may_decode

    @property
    def may_decode(self) -> bool:
        """Whether the target may decode for the session."""
        if self.closed is not None or self.detached or self.order is None:
            return False
        requested = self.order.pace is Pace.GO_ON or self._go_base == self.length - 1
        return self.allowed > 0 and requested

    @property
    def drafted_beside(self) -> bool:
        """Whether the session's order requests the draft on the target's device."""
        return self.order is not None and self.order.beside

    @property
    def is_ready(self) -> bool:
        """Whether a forward pass can include the session, once its row has all missing keys."""
        return self.opening is None and self.may_decode

    # Requests of clients.

    def set_order(self, order: Decode) -> None:
        """Set a new order. Raises LimitExceeded if its end is beyond the session's limit."""
        if order.end > self.limit:
            raise LimitExceeded(
                f"a text of {order.end} tokens, prompt and output together, does not fit the "
                f"sequence length of {self.limit}"
            )
        self.order = order
        self.end = self._ended()

    def go(self, base: int) -> None:
        """Request a forward pass whose root is at position `base`, with pace WAIT.

        No effect if called again, or if the root is at another position.
        """
        if base == self.length - 1:
            self._go_base = base

    def acknowledge(self, length: int) -> None:
        """Record how many tokens the client has. Raises InvalidRequest for more than exist."""
        if length > self.length:
            raise InvalidRequest(
                f"{length} tokens were acknowledged, and the session has {self.length}"
            )
        self.acknowledged = max(self.acknowledged, length)

    def drain(self) -> None:
        """End the output with End.DRAINED, after the running forward pass if any."""
        self._drained = True
        if not self._may_commit:
            self.end = self._ended()

    @property
    def listeners(self) -> list[Callback]:
        """Callbacks of the session's streams, called when the session commits tokens or ends."""
        streams = self.candidates.streams
        return [stream.wake for stream in streams if stream.wake is not None]

    def progress(self, cursor: int, stream: ProposalStream | None) -> Progress:
        """Return the progress after the first `cursor` tokens, for the reader of a stream. Costs
        are those of the whole session.
        """
        progress = self.since(cursor)
        progress.add(self.spent)
        progress.known = 0 if stream is None else stream.known
        progress.held, progress.room = self.candidates.live, self.room
        return progress

    # Steps of forward passes.

    def update_queue_clock(self, now: float) -> None:
        """Start counting queue time if the session has become ready; stop if it is not ready."""
        self.ready_since = (self.ready_since or now) if self.is_ready else 0.0

    def assign_row(self, row: CacheRow, model: Model, now: float) -> None:
        self.row, self.reused, self.got_row = row, len(row.tokens), now
        self.sequence = ModelSequence(model, row.index, self.params, row.slots)

    def release_row(self) -> None:
        self.row = self.sequence = None

    def next_chunk(self, limit: int) -> list[int]:
        """Return up to `limit` prompt tokens to prefill next, without the root."""
        start = self.live.cached
        return self.tokens[start : min(start + limit, len(self.tokens) - 1)]

    def commit_chunk(self, chunk: TokenTree, seconds: float, now: float) -> None:
        """Commit a prefilled chunk of the prompt. The last one begins the turn on the row."""
        self.live.commit(chunk, range(1, len(chunk)))
        self._remember(chunk.tokens.tolist())
        self.prefill_seconds += seconds
        self.got_row = now

    def prepare(self, tree: TokenTree) -> Segment:
        """Return the session's segment of a forward pass over `tree` that starts now.

        Raises LimitExceeded if the row has too few free slots.
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
        """Return the rule's adjustment. Errors are stored: other sessions' pass must not fail."""
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
        """Commit the verdict of a forward pass that ends now, up to the first stop id.

        Return the proposers' claims at the parent node of each new token, [new tokens].

        scores: log-probabilities at the nodes of the tree, if requested.
        proposer: kind of proposer recorded for all nodes; None: by the claims.
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
        credit = max(self.service_credit + tokens, -TUNING.max_behind)
        self.service_credit = min(credit, TUNING.max_ahead)

    def silent_for(self, now: float) -> float:
        """Return the seconds since the session was last ready for a forward pass: 0 while it is
        ready, infinite if it cannot become ready.
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
        assert len(self.row.tokens) == self.live.cached, "a row's tokens are not those of its keys"
