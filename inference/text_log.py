"""A log of tokens, which are appended and never change, and what its readers count. The target's
session is such a log; its client has a TextCopy. Each reader has a cursor. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inference.errors import Mismatch
from inference.order import Decode, End, Opened, Pace, Progress, Spent, TokenLogProb
from inference.proposer import NOBODY
from inference.sampling import SamplingParams

MAX_UNREAD = 512
"""Maximum unread tokens. Beyond this none are acknowledged, so the target pauses."""


class TextLog:
    """The tokens of prompt and output, with proposers and log-probabilities of the output.

    tokens: prompt and output
    proposers: [output tokens] kind of the proposer of each, or NOBODY
    logprobs: [output tokens] if requested
    end: why the output ends
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens, self.prompt_length = list(prompt), len(prompt)
        self.proposers, self.logprobs = list[int](), list[TokenLogProb]()
        self.end = End.NOT

    @property
    def length(self) -> int:
        """Number of tokens, prompt included."""
        return len(self.tokens)

    @property
    def made(self) -> int:
        """Number of output tokens."""
        return len(self.tokens) - self.prompt_length

    def extend(
        self, tokens: Sequence[int], proposers: Sequence[int], logprobs: Sequence[TokenLogProb] = ()
    ) -> None:
        """Append tokens.

        proposers: [tokens] kind of the proposer of each, or NOBODY
        logprobs: [tokens] if requested
        """
        self.tokens += tokens
        self.proposers += proposers
        self.logprobs += logprobs
        assert len(self.proposers) == self.made, "each token has a proposer"
        assert len(self.logprobs) in (0, self.made), "all tokens have log-probabilities, or none"

    def since(self, cursor: int) -> Progress:
        """Return progress after the first `cursor` tokens. Costs and the target's state are 0."""
        output = slice(max(cursor - self.prompt_length, 0), None)
        return Progress(
            position=cursor,
            tokens=tuple(self.tokens[cursor:]),
            proposers=tuple(self.proposers[output]),
            logprobs=tuple(self.logprobs[output]),
            end=self.end,
        )


class TextCopy(TextLog):
    """A client's copy of a session's log, with the position of its only reader. Every report of a
    target is checked. Not thread-safe: the owner of a copy must lock it.

    order: the latest order
    requested: with pace WAIT, the length after which a forward pass was last requested
    awaits_prompt: whether requested log-probabilities of the prompt were not received yet
    latest: last reported progress of the current session, with costs since its opening
    prompt_logprobs: those of the prompt's tokens except the first, once received
    """

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, vocabulary: int, traffic: Traffic
    ) -> None:
        """traffic: adds up the costs of the request"""
        super().__init__(prompt)
        self._params, self._vocabulary, self._traffic = params, vocabulary, traffic
        self.prompt_logprobs: tuple[TokenLogProb, ...] = ()
        self.awaits_prompt = params.prompt_logprobs
        self._cursor, self._unread = self.length, Spent()  # tokens read so far; unread costs
        self._news = False
        self.order: Decode | None = None
        self.requested = 0
        self._limit, self._stop_ids = self.length, frozenset[int]()
        self.begin_session()

    @property
    def is_behind(self) -> bool:
        """Whether the reader is so far behind that no more tokens are acknowledged."""
        return self.length - self._cursor > MAX_UNREAD

    def set_order(self, order: Decode) -> None:
        """Let the output grow as far as the order allows."""
        self.order, self.requested, self.end = order, 0, End.NOT
        self._limit, self._stop_ids = order.end, order.stop_ids

    def begin_session(self) -> None:
        """Begin a new session, whose costs start at 0."""
        self.latest = Progress()

    def take_opened(self, opened: Opened) -> None:
        """Store a prompt's costs and log-probabilities. Raises Mismatch as take() does."""
        if self.awaits_prompt:
            self._check_logprobs(opened.logprobs, self.prompt_length - self._params.made - 1)
            self.prompt_logprobs, self.awaits_prompt = opened.logprobs, False
        self._traffic.queue_seconds += opened.queue_seconds
        self._traffic.prefill_seconds += opened.prefill_seconds
        self._traffic.reused_tokens += opened.reused_tokens

    def take(self, progress: Progress) -> None:
        """Append new tokens. Raises Mismatch with a message to append to the target's name."""
        overlap = self.length - progress.position
        self._check_overlap(progress, overlap)
        fresh, spent = progress.tokens[overlap:], progress.beyond(self.latest)
        self._check(fresh, spent)
        self._check_logprobs(progress.logprobs, len(progress.tokens))
        self.extend(fresh, progress.proposers[overlap:], progress.logprobs[overlap:])
        self.end = self._ended(progress.end)
        self._traffic.add(spent)
        self._unread.add(spent)
        self.latest, self._news = progress, True

    def note_alive(self) -> None:
        """Record a heartbeat."""
        self._news = True

    @property
    def owes_token(self) -> bool:
        """Whether an open session has all it needs to generate a token soon."""
        order = self.order
        if order is None or self.end is not End.NOT or self.is_behind:
            return False
        return self.length < order.end and (
            order.pace is Pace.GO_ON or self.requested >= self.length
        )

    def read(self) -> Progress | None:
        """Return progress since the last call, with its costs; None for no progress."""
        if not self._news:
            return None
        progress, latest = self.since(self._cursor), self.latest
        progress.add(self._unread)
        progress.known, progress.held, progress.room = latest.known, latest.held, latest.room
        self._cursor, self._unread, self._news = self.length, Spent(), False
        return progress

    def _check_overlap(self, progress: Progress, overlap: int) -> None:
        """Raise Mismatch if tokens differ from those received earlier, or some are missing.

        overlap: number of the copy's tokens at or after the position of the progress
        """
        first = progress.position
        if overlap < 0:
            raise Mismatch(f"omitted tokens {self.length} to {first - 1}")
        if tuple(self.tokens[first : first + len(progress.tokens)]) != progress.tokens[:overlap]:
            raise Mismatch(f"contradicts itself: tokens from {first} on have changed")

    def _check(self, fresh: Sequence[int], spent: Spent) -> None:
        if fresh and self.end is not End.NOT:
            raise Mismatch(f"sent {len(fresh)} tokens after the end of the text")
        if fresh and self.length + len(fresh) > self._limit:
            raise Mismatch(f"sent {self.length + len(fresh)} tokens of {self._limit} requested")
        if any(token >= self._vocabulary for token in fresh):
            raise Mismatch(
                f"sent token {max(fresh)}, which is outside its vocabulary of {self._vocabulary}"
            )
        if min(vars(spent).values()) < 0:
            raise Mismatch("counts its work backwards")
        if self._stop_ids & set(fresh[:-1]):
            raise Mismatch("continued after a stop id")

    def _check_logprobs(self, logprobs: Sequence[TokenLogProb], tokens: int) -> None:
        """Raise Mismatch unless there are as many as requested, for valid token ids."""
        likeliest = self._params.logprobs
        due = 0 if likeliest is None else tokens
        if len(logprobs) != due or any(len(token.ids) != likeliest for token in logprobs):
            raise Mismatch(f"did not send the log-probabilities of {due} tokens")
        if any(likely >= self._vocabulary for token in logprobs for likely in token.ids):
            raise Mismatch("sent the log-probability of a token outside its vocabulary")

    def _ended(self, reported: End) -> End:
        """Return the reported end of the output, if it is valid.

        The tokens must agree with the reason, if a client can check it. An order may have been
        replaced while the end of an earlier order was in transit.
        """
        if self.end is not End.NOT:
            return self.end
        if reported in (End.CREDIT, End.EVICTED):  # the output is only paused
            return End.NOT
        if reported is End.MAX_TOKENS and self.length < self._limit:
            return End.NOT
        if reported is End.STOP_ID and not (self.made and self.tokens[-1] in self._stop_ids):
            return End.NOT
        return reported


@dataclass
class Traffic(Spent):
    """Costs of a request's sessions so far; 0 if nothing is counted.

    queue_seconds: includes the wait for a row
    """

    bytes_up: int = 0  # from client to target, including FRAMING_BYTES per message
    bytes_down: int = 0  # from target to client, including FRAMING_BYTES per message
    messages_up: int = 0
    messages_down: int = 0
    prefill_seconds: float = 0.0  # time of the prompt's forward passes
    reused_tokens: int = 0  # prompt tokens whose keys were in the prefix cache
    resumes: int = 0  # broken streams that were resumed
    reopenings: int = 0  # sessions that were opened again, with a prefill

    def copy(self) -> Traffic:
        """Return a copy, which later traffic does not change."""
        return replace(self)


@dataclass
class DecodeStatistics:
    """Acceptance counts of one request, or summed over several.

    accepted_at_depth: [depth - 1] forward passes that accepted a candidate at this depth.
    """

    forwards: int = 0  # forward passes that committed tokens
    num_accepted_tokens: int = 0  # committed tokens that were candidates in their forward pass
    by_proposer: dict[int, int] = field(default_factory=dict)  # accepted tokens by kind
    accepted_at_depth: list[int] = field(default_factory=list)
    _depth: int = 0

    def count(self, proposers: Sequence[int]) -> None:
        """Count committed tokens in order, by the proposer of each.

        Each forward pass ends with the target's own token, whose proposer is NOBODY.
        """
        for proposer in proposers:
            if proposer == NOBODY:
                self.forwards += 1
                self._depth = 0
                continue
            if len(self.accepted_at_depth) == self._depth:
                self.accepted_at_depth.append(0)
            self.accepted_at_depth[self._depth] += 1
            self._depth += 1
            self.num_accepted_tokens += 1
            self.by_proposer[proposer] = self.by_proposer.get(proposer, 0) + 1

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per forward pass, the target's own token included; 0 before the first forward
        pass.
        """
        tokens = self.num_accepted_tokens + self.forwards
        return tokens / self.forwards if self.forwards else 0.0
