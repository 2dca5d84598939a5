"""Generates the text of one prompt, with a record of its end, times, counts and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Any

from inference.cost.quantity import Figure
from inference.errors import OutriderError, Unavailable
from inference.loop.decode import Loop, Step, TargetSession
from inference.loop.draft_thread import Drafter, Drafting
from inference.loop.stats import DecodeStatistics, Traffic
from inference.order import Decode, End, Pace, TokenLogProb
from inference.planner.prices import Usage
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.money.budget import Charge
from outrider.text.pieces import Piece, PieceMaker, gaps_between
from outrider.text.tools.call_reader import ToolCall, add_piece
from outrider.text.tools.tool_calls import Tools

PROPOSERS = ("model", "copy", "host", "device")
"""Names of the kinds of proposers in a record."""

ENDS = {End.STOP_ID: "stop", End.MAX_TOKENS: "length", End.LIMIT: "length"}

Show = Callable[[Piece], None]
"""Receives the text of a request, piece by piece."""


def silent(piece: Piece) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it."""

    index: int
    prompt: str
    ids: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]  # end the text; part of its tokens, not of the text
    stop: Sequence[str] = ()  # strings that end the text and are left out of it
    charge: Charge | None = None  # counts its usage against the budget of the run
    cache_key: str = ""  # requests of one key go to one replica, which may have their beginning
    tools: Tools | None = None  # functions that the text may call

    def order(self, pace: Pace = Pace.GO_ON, *, colocated: bool = False) -> Decode:
        """The order for the target.

        colocated: whether the draft at the target proposes, too
        """
        end = len(self.ids) + self.max_new_tokens
        return Decode(end, self.stop_ids, pace=pace, beside=colocated)


SHOWN = 60
"""Maximum characters of a text in its repr."""


@dataclass(repr=False)
class Completion:
    """The record of one text. Times are in seconds."""

    index: int
    prompt: str
    seed: int
    prompt_tokens: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)  # none of them stands in the text
    # [token] and of the prompt's tokens but the first, if requested
    logprobs: list[TokenLogProb] = field(default_factory=list)
    prompt_logprobs: Sequence[TokenLogProb] = ()
    stopped_by: str = ""  # the stop string that ended it
    # stop, length, cancelled, spent (what the run may cost, perhaps before it began), or error
    finish_reason: str = "cancelled"
    # the error that ended it; what was verified until then is above
    failure: OutriderError | None = None
    traffic: Traffic = field(default_factory=Traffic)  # counts and times of the session
    accepted: DecodeStatistics = field(default_factory=DecodeStatistics)
    draft_calls: int = 0  # calls of models on this machine
    draft_seconds: float = 0.0  # time in these calls
    seconds: float = 0.0
    time_to_first_token: float = 0.0  # from the request to the first piece, as its reader sees it
    # [chunk] from the request to the tokens that came together
    arrivals: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)  # [chunk] how many tokens came together
    usd: float | None = None  # where prices are known
    # US dollars: a lower bound where only some prices are known
    cost: Figure = field(default_factory=partial(Figure.unavailable, "no price is known"))
    # joules of this machine while it drafted, by the watts that the user states
    energy: Figure = field(default_factory=partial(Figure.unavailable, "no watts are known"))
    device: str = ""  # the target's, as it describes it; empty for a model in this process
    loading_seconds: float | None = None  # of the draft, where it was loading when the text ended
    baseline: Completion | None = None

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= SHOWN else self.text[: SHOWN - 1] + "…"
        counts = f"{len(self.token_ids)} tokens, {self.finish_reason!r}"
        return f"Completion({text!r}, {counts})"

    @property
    def drafted(self) -> bool:
        """Whether any draft took part."""
        return self.draft_calls > 0 or self.num_draft_tokens > 0

    @property
    def speedup(self) -> float | None:
        """Speed relative to the target alone; None without a baseline, or if no draft took part."""
        base = self.baseline if self.drafted else None
        return None if base is None else base.seconds / self.seconds

    @property
    def num_draft_tokens(self) -> int:
        """Candidates that the target computed."""
        return max(self.traffic.candidates, 0)

    @property
    def num_accepted_tokens(self) -> int:
        return self.accepted.num_accepted_tokens

    @property
    def accepted_by(self) -> dict[str, int]:
        """Accepted tokens by the kind of proposer."""
        return {PROPOSERS[kind]: count for kind, count in self.accepted.by_proposer.items()}

    @property
    def acceptance_length(self) -> float:
        """Tokens per forward pass."""
        return _ratio(len(self.token_ids), self.traffic.forwards)

    @property
    def acceptance_length_drafted(self) -> float:
        """Tokens per forward pass with candidates."""
        drafted = self.traffic.drafted
        return _ratio(drafted + self.num_accepted_tokens, drafted)

    @property
    def tokens_per_second(self) -> float:
        return _ratio(len(self.token_ids), self.seconds)

    @property
    def whole(self) -> bool:
        """Whether the text ended by itself: by a stop id or by its length."""
        return self.finish_reason in ("stop", "length")

    @property
    def usage(self) -> Usage:
        """Time and traffic of the text, with the target held all the time."""
        traffic = self.traffic
        return Usage(self.seconds, self.draft_seconds, traffic.bytes_up, traffic.bytes_down)

    @property
    def usage_of_forwards(self) -> Usage:
        """The usage where only the text's share of the target's forwards is paid."""
        wall = self.traffic.share_seconds + self.traffic.prefill_seconds
        return self.usage._replace(wall=wall)

    @property
    def error(self) -> str:
        """The message of the error that ended the text; empty without one."""
        return "" if self.failure is None else str(self.failure)

    def raise_failure(self) -> Completion:
        """Raise the error that ended the text. Returns the record where there is none."""
        if self.failure is not None:
            raise self.failure
        return self

    def record(self) -> dict[str, Any]:
        """The record as plain data for JSON. The field `error` is there only if there is one."""
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
"""Fields of a record that are left out if empty."""
_DERIVED = (
    "num_draft_tokens", "num_accepted_tokens", "accepted_by", "acceptance_length",
    "acceptance_length_drafted", "tokens_per_second", "speedup",
)  # fmt: skip


def _ratio(amount: float, whole: float) -> float:
    return amount / whole if whole else 0.0


OnCommit = Callable[[Completion], None]
"""Receives the record of a text whenever tokens were committed."""

Complete = Callable[[Request, Show, Event], Completion]
"""Generates the text of a request. When the event is set, the text ends where it is."""


def new_completion(request: Request, failure: OutriderError | None = None) -> Completion:
    """The record of a text that has not begun.

    failure: prevents it
    """
    done = Completion(request.index, request.prompt, request.params.seed, len(request.ids))
    return done if failure is None else replace(done, finish_reason="error", failure=failure)


class _Generation:
    """A text while it is generated: its clock, counts and end condition."""

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
        """Take a step, which may be empty. Returns false if generation should stop."""
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
        """The finished record, also of a text that was cut short.

        failure: ended the text
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
            if done.stopped_by:  # what came behind it is no part of the text
                done.finish_reason = "stop"
                break
        count = len(done.token_ids) - before
        done.accepted.count(step.proposers[:count])
        done.arrivals.append(done.seconds)
        done.chunk_tokens.append(count)
        done.traffic = self._session.traffic.copy()

    def _spent(self) -> bool:
        """Count the usage. Returns whether the budget is spent."""
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
    """Decode until the text ends or `cancelled` is set. Closes the session.

    An error ends the text, too, and is in the record.

    order: the order for the target; by default request.order()
    on_commit: called whenever tokens were committed
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
