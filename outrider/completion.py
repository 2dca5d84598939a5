"""One prompt from ids to text, with everything that is reported about it: the loop, stop ids, clocks and counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any, NamedTuple

from grpc_comm.client import Connection
from inference.adaptive import decode_adaptive
from inference.decode import Drafter, Verifier, decode
from inference.drafters.adaptive import AdaptiveDrafter
from inference.errors import Unavailable
from inference.forecast import DISTRIBUTED, FUSED, TARGET_ONLY
from inference.fused import StopwatchDrafter
from inference.navigator import Course, Navigator
from inference.offline import LinkedVerifier, Unverified, decode_offline
from inference.policy import Policy
from inference.sampling import SamplingParams
from inference.stats import Statistics, Traffic
from inference.text import TextStream, Tokenizer
from outrider.purse import Tab


class Piece(NamedTuple):
    """Text that became certain, and whether the draft had guessed its last token; or text that nobody has verified yet."""

    text: str
    accepted: bool
    verified: bool = True


Show = Callable[[Piece], None]


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it. stop_ids end the text; they are part of the tokens but not of the text."""

    index: int
    prompt: str
    ids: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]
    tab: Tab | None = None  # where what it takes is counted, and what the run may cost


@dataclass
class Completion:
    """The record of one text: the same names for every role that makes text. Times in seconds."""

    index: int
    prompt: str
    seed: int
    prompt_tokens: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    unverified_text: str = ""  # what the draft made alone when the target went away for good
    finish_reason: str = "cancelled"  # stop, length, cancelled, spent (what the run may cost, perhaps before it began), or unverified
    made_by: dict[str, int] = field(default_factory=dict)  # architecture -> tokens
    stretch_tokens: int = 0  # made by the target between rounds; the counts of rounds and of what was drafted are without them
    rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    acceptance_length: float = 0.0
    acceptance_rate: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    resumes: int = 0  # streams that broke and were taken up again
    reopenings: int = 0  # sessions that went on elsewhere, or here with a prefill
    seconds: float = 0.0
    time_to_first_token: float = 0.0
    tokens_per_second: float = 0.0
    draft_seconds: float = 0.0  # drafting that the rounds waited for
    ahead_seconds: float = 0.0  # drafting while verdicts were awaited
    bet_hits: int = 0  # rounds whose outcome had been prepared for
    bet_nodes: int = 0  # ranked while a verdict was awaited
    bet_nodes_used: int = 0  # of these, under the outcome that came
    expected_acceptance_length: float = 0.0  # that the draft had predicted, where it predicts
    usd: float | None = None  # where prices are known
    target_seconds: float = 0.0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    arrivals: list[float] = field(
        default_factory=list
    )  # [chunk] from the request to the tokens that came together
    chunk_tokens: list[int] = field(default_factory=list)  # [chunk] how many those were
    accepted_at_depth: list[int] = field(
        default_factory=list
    )  # [depth - 1] rounds that accepted a node of this depth
    device: str = ""  # of the target, as it describes itself: an emulated one says so; empty for a model in this process
    baseline: Completion | None = None
    speedup: float | None = None

    @property
    def whole(self) -> bool:
        """It ended as the text does."""
        return self.finish_reason in ("stop", "length")

    def record(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


def new_completion(request: Request) -> Completion:
    """Of a text that has not begun."""
    return Completion(request.index, request.prompt, request.params.seed, len(request.ids))


class _Run:
    """A completion being made: clock, text, counts and the end condition. traffic: of the session that makes it.  architecture: of its rounds."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        show: Show,
        traffic: Traffic,
        architecture: str,
    ) -> None:
        self.done, self._statistics, self._architecture = (
            new_completion(request),
            Statistics(),
            architecture,
        )
        self._request, self._show, self._traffic = request, show, traffic
        self._tokenizer = tokenizer
        self._text = tokenizer.stream(request.ids)
        self._guess: TextStream | None = None
        self._start = time.perf_counter()

    def emit(self, token: int, accepted: bool) -> bool:
        """Take one token; false when it was the last."""
        done = self.done
        self._guess, done.unverified_text = None, ""
        done.seconds = time.perf_counter() - self._start
        done.time_to_first_token = done.time_to_first_token or done.seconds
        done.token_ids.append(token)
        if token in self._request.stop_ids:
            done.finish_reason = "stop"
            return False
        self._put(self._text.push(token), accepted)
        if len(done.token_ids) >= self._request.max_new_tokens:
            done.finish_reason = "length"
            return False
        return True

    def take(self, tokens: Sequence[int], drafted: int, drafting: float = 0.0) -> bool:
        """Take what a round brought, all but the last accepted; false when the text has ended. drafting: seconds of it here so far."""
        self._statistics.count(drafted, len(tokens) - 1)
        return self._commit(tokens, self._architecture, drafting)

    def take_between(self, token: int, architecture: str, drafting: float) -> bool:
        """The same of a token that the target made between rounds."""
        going_on = self._commit([token], architecture, drafting)
        self.done.stretch_tokens += 1
        return going_on

    def _commit(self, tokens: Sequence[int], architecture: str, drafting: float) -> bool:
        done, before = self.done, len(self.done.token_ids)
        accepted = [True] * (len(tokens) - 1) + [False]
        going_on = all(self.emit(token, flag) for token, flag in zip(tokens, accepted, strict=True))
        made = len(done.token_ids) - before
        done.arrivals.append(done.seconds)
        done.chunk_tokens.append(made)
        done.made_by[architecture] = done.made_by.get(architecture, 0) + made
        if self._request.tab is not None:
            self._request.tab.take(drafting, self._traffic)
            if going_on and self._request.tab.purse.empty:
                done.finish_reason = "spent"
                return False
        return going_on

    def guess(self, token: int) -> None:
        """Take one that nobody has verified: the next token that is emitted takes all of them back."""
        if self._guess is None:
            self._guess = self._tokenizer.stream([*self._request.ids, *self.done.token_ids])
        text = "" if token in self._request.stop_ids else self._guess.push(token)
        self.done.unverified_text += text
        self._show(Piece(text, accepted=False, verified=False))

    def abandon(self) -> None:
        """Nobody will verify the guesses."""
        self.done.finish_reason = "unverified"

    def finish(self, draft_seconds: float) -> Completion:
        """The record, also of a text that was cut short."""
        done, traffic, statistics = self.done, self._traffic, self._statistics
        if self._request.tab is not None:
            self._request.tab.close()
            done.usd = self._request.tab.usd
        self._put(self._text.finish(), False)
        done.rounds, done.num_draft_tokens = statistics.rounds, statistics.num_draft_tokens
        done.num_accepted_tokens = statistics.num_accepted_tokens
        done.accepted_at_depth = statistics.accepted_at_depth
        done.acceptance_length, done.acceptance_rate = (
            statistics.acceptance_length,
            statistics.acceptance_rate,
        )
        done.bytes_up, done.bytes_down = traffic.bytes_up, traffic.bytes_down
        done.resumes, done.reopenings = traffic.resumes, traffic.reopenings
        done.target_seconds, done.queue_seconds, done.prefill_seconds = (
            traffic.model_seconds,
            traffic.queue_seconds,
            traffic.prefill_seconds,
        )
        done.draft_seconds = draft_seconds
        done.tokens_per_second = len(done.token_ids) / done.seconds if done.seconds else 0.0
        return done

    def _put(self, text: str, accepted: bool) -> None:
        if text:
            self.done.text += text
            self._show(Piece(text, accepted))


def speculate(
    request: Request,
    drafter: Drafter,
    verifier: Verifier,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
) -> Completion:
    """Draft and verify until the text ends or `cancelled` is set; the sessions are closed."""
    run, timed = (
        _Run(request, tokenizer, show, verifier.traffic, DISTRIBUTED),
        StopwatchDrafter(drafter),
    )
    with closing(verifier), closing(drafter):
        for step in decode(request.ids, request.params, timed, verifier, request.max_new_tokens):
            if not run.take(step.tokens, len(step.tree) - 1, timed.seconds) or cancelled.is_set():
                break
        return run.finish(timed.seconds)


def speculate_adaptive(
    request: Request,
    drafter: AdaptiveDrafter,
    verifier: Verifier,
    navigator: Navigator,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
    *,
    tell: Callable[[Course, Completion], None] | None = None,
) -> Completion:
    """The same, the draft's trees, bets and the architecture being chosen as it goes.

    tell: hears of every decision, and how far the text is, in place of the navigator's own.
    """
    run, drafted = _Run(request, tokenizer, show, verifier.traffic, DISTRIBUTED), drafter.drafted
    if tell is not None:
        navigator.tell = lambda course: tell(course, run.done)
    with closing(verifier), closing(drafter):
        for step in decode_adaptive(
            request.ids,
            request.params,
            drafter,
            verifier,
            navigator,
            request.max_new_tokens,
            request.stop_ids,
        ):
            drafting = drafted.seconds + drafted.seconds_ahead
            if step.stretch is None:
                going_on = run.take(step.tokens, len(step.tree) - 1, drafting)
            else:
                going_on = run.take_between(step.verdict.next_token, step.stretch, drafting)
            if not going_on or cancelled.is_set():
                break
        done = run.finish(drafted.seconds)
    done.ahead_seconds, done.bet_hits = drafted.seconds_ahead, drafted.hits
    done.bet_nodes, done.bet_nodes_used = drafted.prepared, drafted.used
    done.expected_acceptance_length = (
        1 + drafted.expected / drafted.rounds if drafted.rounds else 0.0
    )
    return done


def speculate_offline(
    request: Request,
    drafter: Drafter,
    verifier: LinkedVerifier,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
) -> Completion:
    """As speculate(), and the draft goes on alone while the target is away; what nobody verified in the end is marked as such."""
    run, timed = (
        _Run(request, tokenizer, show, verifier.traffic, DISTRIBUTED),
        StopwatchDrafter(drafter),
    )
    with closing(verifier), closing(drafter):
        try:
            for made in decode_offline(
                request.ids,
                request.params,
                timed,
                verifier,
                request.max_new_tokens,
                request.stop_ids,
            ):
                if isinstance(made, Unverified):
                    run.guess(made.token)
                elif not run.take(made.tokens, len(made.tree) - 1, timed.seconds):
                    break
                if cancelled.is_set():
                    break
        except Unavailable:
            if not run.done.unverified_text:
                raise
            run.abandon()
        return run.finish(timed.seconds)


def target_only(
    request: Request, verifier: Verifier, tokenizer: Tokenizer, show: Show, cancelled: Event
) -> Completion:
    """The target's own decoding of the same request, streamed: the baseline. A round is one token here."""
    run = _Run(request, tokenizer, show, verifier.traffic, TARGET_ONLY)
    with closing(verifier):
        verifier.open(request.ids, request.params).result()
        for token in verifier.generate(request.max_new_tokens, request.stop_ids):
            if not run.take([token], 0) or cancelled.is_set():
                break
        return run.finish(0.0)


def made_there(
    request: Request,
    target: Connection,
    fused: bool,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
    *,
    policy: Policy | None = None,
) -> Completion:
    """The text made at the target in one request and streamed: by itself, or (fused) with the draft beside it.

    policy: how that draft grows its trees (None: as the target's host is set).
    """
    traffic, draft_seconds = Traffic(), 0.0
    run = _Run(request, tokenizer, show, traffic, FUSED if fused else TARGET_ONLY)
    made = target.generate(
        request.ids,
        request.params,
        request.max_new_tokens,
        request.stop_ids,
        fused=fused,
        traffic=traffic,
        policy=policy,
    )
    with closing(made):
        for tokens, drafted, draft_seconds in made:  # noqa: B007  # the last is read below
            if not run.take(tokens, drafted) or cancelled.is_set():
                break
    return run.finish(draft_seconds)
