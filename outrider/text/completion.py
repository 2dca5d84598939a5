"""Completes one prompt, with a record of the output, its end, times, counts and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any

from inference.cost.billing import Figure
from inference.errors import OutriderError, Unavailable
from inference.loop.decode import Loop, Step, TargetSession
from inference.loop.draft_thread import Drafter, Drafting
from inference.order import Decode, End, Pace, TokenLogProb
from inference.planner.prices import Usage
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from inference.text_log import DecodeStatistics, Traffic
from outrider.money import Charge
from outrider.text.call_reader import ToolCall, add_piece
from outrider.text.pieces import Piece, PieceMaker, gaps_between
from outrider.text.tool_calls import Tools

PROPOSERS = ("model", "copy", "host", "device")
"""Names that a record uses for the kinds of proposers."""

ENDS = {End.STOP_ID: "stop", End.MAX_TOKENS: "length", End.LIMIT: "length"}

Show = Callable[[Piece], None]
"""Receives the output of a request, piece by piece."""


def silent(piece: Piece) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Request:
    """A prompt, and how to continue it."""

    index: int
    prompt: str
    ids: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]  # end the output; in its tokens, but not in its text
    stop: Sequence[str] = ()  # strings that end the output and are left out of it
    charge: Charge | None = None  # counts the request's usage against the run's budget
    cache_key: str = ""  # requests with equal keys go to one replica, whose cache may help
    tools: Tools | None = None  # functions that the model may call

    def order(self, pace: Pace = Pace.GO_ON, *, colocated: bool = False) -> Decode:
        """Return the order (session settings) for the target.

        colocated: whether the draft on the target's machine proposes, too
        """
        end = len(self.ids) + self.max_new_tokens
        return Decode(end, self.stop_ids, pace=pace, beside=colocated)


SHOWN = 60
"""Maximum characters of the text in a completion's repr."""


@dataclass(repr=False)
class Completion:
    """The output of one request, and the record of its generation. Times are in seconds."""

    index: int
    prompt: str
    seed: int
    prompt_tokens: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)  # these are left out of `text`
    # [token] and [token of the prompt, except the first], if requested
    logprobs: list[TokenLogProb] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogProb] = ()
    stopped_by: str = ""  # the stop string that ended the output
    # stop, length, cancelled, spent (spending limit reached, perhaps before the start), or error
    finish_reason: str = "cancelled"
    # the error that ended the output; the tokens verified before it are above
    failure: OutriderError | None = None
    traffic: Traffic = field(default_factory=Traffic)  # counts and times of the session
    accepted: DecodeStatistics = field(default_factory=DecodeStatistics)
    draft_calls: int = 0  # forward passes of models on this machine
    draft_seconds: float = 0.0  # time in these passes
    seconds: float = 0.0
    time_to_first_token: float = 0.0  # from the request to the first piece, as a reader sees it
    # [chunk] time from the request to the arrival of the chunk's tokens
    arrivals: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)  # [chunk] number of its tokens
    usd: float | None = None  # if prices are known
    # US dollars: a lower bound if some prices are unknown
    cost: Figure = field(default_factory=partial(Figure.unavailable, "no price is known"))
    # joules that drafting used on this machine, by the watts that the user states
    energy: Figure = field(default_factory=partial(Figure.unavailable, "no watts are known"))
    device: str = ""  # the target's description of it; empty for a model in this process
    loading_seconds: float | None = None  # of the draft, if it was still loading at the end
    baseline: Completion | None = None

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…"
        counts = f"{len(self.token_ids)} tokens, {self.finish_reason!r}"
        return f"Completion({text!r}, {counts})"

    @property
    def drafted(self) -> bool:
        """Whether a draft took part: it ran, or it proposed tokens."""
        return self.draft_calls > 0 or self.num_draft_tokens > 0

    @property
    def speedup(self) -> float | None:
        """Speed relative to the target alone; None without a baseline, or without drafting."""
        base = self.baseline if self.drafted else None
        return None if base is None else base.seconds / self.seconds

    @property
    def num_draft_tokens(self) -> int:
        """Number of candidates that the target verified."""
        return max(self.traffic.candidates, 0)

    @property
    def num_accepted_tokens(self) -> int:
        return self.accepted.num_accepted_tokens

    @property
    def accepted_by(self) -> dict[str, int]:
        """Number of accepted tokens of each kind of proposer."""
        return {PROPOSERS[kind]: count for kind, count in self.accepted.by_proposer.items()}

    @property
    def acceptance_length(self) -> float:
        """Tokens per forward pass of the target."""
        return _ratio(len(self.token_ids), self.traffic.forwards)

    @property
    def acceptance_length_drafted(self) -> float:
        """Tokens per forward pass of the target that had candidates."""
        drafted = self.traffic.drafted
        return _ratio(drafted + self.num_accepted_tokens, drafted)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(len(self.token_ids), self.seconds)

    @property
    def whole(self) -> bool:
        """Whether the output is complete: ended by a stop id, a stop string or its length."""
        return self.finish_reason in ("stop", "length")

    @property
    def usage(self) -> Usage:
        """Time and traffic of the request, if the target is paid for all the time it took."""
        traffic = self.traffic
        return Usage(self.seconds, self.draft_seconds, traffic.bytes_up, traffic.bytes_down)

    @property
    def usage_of_forwards(self) -> Usage:
        """The usage if only this request's share of the target's forward passes is paid."""
        wall = self.traffic.share_seconds + self.traffic.prefill_seconds
        return self.usage._replace(wall=wall)

    @property
    def error(self) -> str:
        """Message of the error that ended the output; empty if none did."""
        return "" if self.failure is None else str(self.failure)

    def raise_failure(self) -> Completion:
        """Raise the error that ended the output. Returns the record if there was none."""
        if self.failure is not None:
            raise self.failure
        return self

    def record(self) -> dict[str, Any]:
        """Return the record as plain data for JSON. `error` is included only if there is one."""
        filled = {name for name in _OPTIONAL if getattr(self, name)}
        left_out = {*_PARTS, *_OPTIONAL} - filled
        fields = {name: value for name, value in vars(self).items() if name not in left_out}
        counts, gaps = dict(vars(self.traffic)), gaps_between([self.arrivals])
        return {
            **fields,
            **({"error": self.error} if self.error else {}),
            "lone_forwards": counts.pop("lone"),
            "target_seconds": counts.pop("model_seconds"),
            **counts,
            **{name: getattr(self, name) for name in _DERIVED},
            "acceptance_rate": _ratio(self.num_accepted_tokens, self.num_draft_tokens),
            "accepted_at_depth": self.accepted.accepted_at_depth,
            "gap_p50": gaps.p50,
            "gap_p99": gaps.p99,
            "gap_max": gaps.largest,
            "baseline": None if self.baseline is None else self.baseline.record(),
        }


_PARTS = ("failure", "traffic", "accepted", "cost", "energy")
_OPTIONAL = ("tool_calls", "logprobs", "prompt_logprobs", "stopped_by")
"""Fields that a record leaves out if they are empty."""
_DERIVED = (
    "num_draft_tokens", "num_accepted_tokens", "accepted_by", "acceptance_length",
    "acceptance_length_drafted", "tokens_per_second", "speedup",
)  # fmt: skip


def _ratio(amount: float, total: float) -> float:
    return amount / total if total else 0.0


OnCommit = Callable[[Completion], None]
"""Receives the record so far, each time that tokens were committed."""

Complete = Callable[[Request, Show, Event], Completion]
"""Runs a request. When the event is set, the output ends at once."""


def new_completion(request: Request, failure: OutriderError | None = None) -> Completion:
    """Return the empty record of a request.

    failure: error that prevents the request from starting
    """
    done = Completion(request.index, request.prompt, request.params.seed, len(request.ids))
    return done if failure is None else replace(done, finish_reason="error", failure=failure)


class _Generation:
    """A request in progress: its clock, counts and end condition."""

    def __init__(
        self, request: Request, session: TargetSession, tokenizer: Tokenizer, show: Show
    ) -> None:
        self.done = new_completion(request)
        self._request, self._show, self._session = request, show, session
        self._special_stops = tokenizer.special_tokens(request.stop) if request.stop else {}
        minimum = max(request.params.min_tokens - request.params.made, 0)
        self._pieces = PieceMaker(tokenizer, request.ids, request.stop, minimum, request.tools)
        self._start = time.perf_counter()

    def take(self, step: Step, drafting: Drafting) -> bool:
        """Add a step, which may be empty. Returns False if generation should stop."""
        done = self.done
        done.draft_calls, done.draft_seconds = drafting.usage.calls, drafting.usage.seconds
        if step.tokens:
            self._commit(step)
        if step.end is not End.NOT and done.finish_reason == "cancelled":
            if step.end not in ENDS:
                raise Unavailable(f"the target stopped the text: {step.end.name}")
            done.finish_reason = ENDS[step.end]
        if done.finish_reason == "cancelled" and self._spent():
            done.finish_reason = "spent"
        return done.finish_reason == "cancelled"

    def finish(self, failure: OutriderError | None = None) -> Completion:
        """Return the finished record, also if the output was cut short.

        failure: error that ended the output
        """
        done, charge = self.done, self._request.charge
        self._spent()
        if charge is not None:
            charge.close()
            done.usd = charge.usd
        for piece in self._pieces.finish():
            self._put(piece)
        done.traffic = self._session.traffic.copy()
        done.prompt_logprobs = self._session.prompt_logprobs
        if failure is not None:
            done.finish_reason, done.failure = "error", failure
        return done

    def _commit(self, step: Step) -> None:
        done, before = self.done, len(self.done.token_ids)
        done.seconds = time.perf_counter() - self._start
        done.time_to_first_token = done.time_to_first_token or done.seconds
        logprobs = step.logprobs or (None,) * len(step.tokens)
        for token, proposer, logprob in zip(step.tokens, step.proposers, logprobs, strict=True):
            done.token_ids.append(token)
            self._pieces.count(token, logprob)
            if token in self._request.stop_ids:
                done.finish_reason = "stop"
                done.stopped_by = self._special_stops.get(token, "")
                break
            for piece in self._pieces.push(token, proposer):
                self._put(piece)
            done.stopped_by = self._pieces.stopped_by
            if done.stopped_by:  # tokens after a stop string are dropped
                done.finish_reason = "stop"
                break
        count = len(done.token_ids) - before
        done.accepted.count(step.proposers[:count])
        done.arrivals.append(done.seconds)
        done.chunk_tokens.append(count)
        done.traffic = self._session.traffic.copy()

    def _spent(self) -> bool:
        """Charge the usage so far. Returns whether the budget is spent."""
        charge = self._request.charge
        if charge is None:
            return False
        charge.take(self.done.draft_seconds, self._session.traffic)
        return charge.budget.empty

    def _put(self, piece: Piece) -> None:
        self.done.text += piece.text
        self.done.logprobs += piece.logprobs
        if piece.call is not None:
            add_piece(self.done.tool_calls, piece.call)
        self._show(piece)


def complete(
    request: Request,
    session: TargetSession,
    drafter: Drafter,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
    *,
    order: Decode | None = None,
    on_commit: OnCommit | None = None,
) -> Completion:
    """Run a request until its output ends or `cancelled` is set. Closes the session.

    An error ends the output, too, and is stored in the record.

    order: session settings for the target; by default request.order()
    on_commit: called each time that tokens were committed
    """
    text = _Generation(request, session, tokenizer, show)
    order = order or request.order()
    with ExitStack() as stack:
        stack.callback(session.close)
        try:
            loop = Loop(request.ids, request.params, session, order, drafter)
            stack.enter_context(closing(loop))
            for step in loop.steps():
                if not text.take(step, loop.drafting):
                    break
                if step.tokens and on_commit is not None:
                    on_commit(text.done)
                if cancelled.is_set():
                    break
        except OutriderError as error:
            return text.finish(error)
        return text.finish()
