"""Makes the text of one prompt, and the record of it: end, times, counts and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from threading import Event
from typing import Any, NamedTuple

import numpy as np

from inference.cost.effort import Effort
from inference.decode import Loop, Step, TargetSession
from inference.draft_thread import Drafter, Drafting
from inference.errors import OutriderError, Unavailable
from inference.order import Decode, End, Pace
from inference.proposer import NOBODY
from inference.sampling import SamplingParams
from inference.stats import DecodeStatistics
from inference.text import Tokenizer
from outrider.money.purse import Tab

PROPOSERS = ("model", "copy", "host", "device")
"""What each kind of proposer is called in a record."""

ENDS = {
    End.STOP_ID: "stop",
    End.MAX_TOKENS: "length",
    End.LIMIT: "length",
    End.SPENT: "spent",
}


class Piece(NamedTuple):
    """A part of a text, as the target has committed it."""

    text: str
    proposer: int = NOBODY  # kind of the proposer that had named its last token

    @property
    def accepted(self) -> bool:
        """Whether a proposer had named its last token."""
        return self.proposer != NOBODY


Show = Callable[[Piece], None]
"""Receives the text of a request, piece by piece."""


class Gaps(NamedTuple):
    """Seconds between the pieces of texts, as their reader sees them."""

    p50: float
    p99: float
    largest: float


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it."""

    index: int
    prompt: str
    ids: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]  # end the text; part of its tokens, not of the text
    tab: Tab | None = None  # where what it takes is counted, and what the run may cost
    cache_key: str = ""  # requests of one key go to one replica, which may have their beginning

    def order(self, pace: Pace = Pace.GO_ON, *, beside: bool = False) -> Decode:
        """The order that a target is given for this request."""
        end = len(self.ids) + self.max_new_tokens
        return Decode(end, self.stop_ids, pace=pace, beside=beside)


@dataclass
class Completion:
    """The record of one text. All roles that make text use the same names. Times are in seconds."""

    index: int
    prompt: str
    seed: int
    prompt_tokens: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    # stop, length, cancelled, spent (what the run may cost, perhaps before it began), or error
    finish_reason: str = "cancelled"
    error: str = ""  # what ended it before its end; what was verified until then stands above
    forwards: int = 0  # forwards of the target that the text took part in
    lone_forwards: int = 0  # forwards without candidates
    nodes: int = 0  # computed for this text, roots included
    num_draft_tokens: int = 0  # candidates among the nodes
    num_accepted_tokens: int = 0
    accepted_by: dict[str, int] = field(default_factory=dict)  # kind of proposer -> tokens
    acceptance_length: float = 0.0  # tokens a forward
    acceptance_length_drafted: float = 0.0  # tokens a forward with candidates
    acceptance_rate: float = 0.0  # share of the computed candidates
    bytes_up: int = 0
    bytes_down: int = 0
    messages_up: int = 0
    messages_down: int = 0
    resumes: int = 0  # streams that broke and were taken up again
    reopenings: int = 0  # sessions that went on elsewhere, or here with a prefill
    seconds: float = 0.0
    time_to_first_token: float = 0.0  # from the request to the first piece, as its reader sees it
    gap_p50: float = 0.0  # gaps between pieces, as their reader sees them
    gap_p99: float = 0.0
    gap_max: float = 0.0
    tokens_per_second: float = 0.0
    draft_calls: int = 0  # calls of models on this machine
    draft_seconds: float = 0.0  # time in these calls
    usd: float | None = None  # where prices are known
    target_seconds: float = 0.0  # duration of the forwards
    share_seconds: float = 0.0  # the text's share of the forwards, which others may share, too
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    reused_tokens: int = 0  # prompt tokens whose keys were in the target's prefix cache
    # [chunk] from the request to the tokens that came together
    arrivals: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)  # [chunk] how many tokens came together
    # [depth - 1] forwards that accepted a candidate of this depth
    accepted_at_depth: list[int] = field(default_factory=list)
    # the target's device, as it describes it: an emulated one says so; empty for a model in this
    # process
    device: str = ""
    baseline: Completion | None = None
    speedup: float | None = None

    @property
    def whole(self) -> bool:
        """Whether the text ended by itself: by a stop id or by its length."""
        return self.finish_reason in ("stop", "length")

    @property
    def effort(self) -> Effort:
        """What the text took, with the target held all the time."""
        return Effort(self.seconds, self.draft_seconds, self.bytes_up, self.bytes_down)

    @property
    def effort_of_forwards(self) -> Effort:
        """What the text took, where only its share of the target's forwards is paid."""
        return self.effort._replace(wall=self.share_seconds + self.prefill_seconds)

    def record(self) -> dict[str, Any]:
        """The record as plain data for JSON. The field `error` is there only if there is one."""
        return {name: value for name, value in asdict(self).items() if value or name != "error"}


class Broken(OutriderError):
    """An error ended a text. `done` is its record up to the error, and `reason` the error."""

    def __init__(self, error: OutriderError, done: Completion) -> None:
        super().__init__(str(error))
        self.reason, self.done = error, done


Tell = Callable[[Completion], None]
"""Receives the record of a text whenever tokens came."""


Complete = Callable[[Request, Show, Event], Completion]
"""Makes the text of a request. When the event is set, the text ends where it is."""


def new_completion(request: Request) -> Completion:
    """The record of a text that has not begun."""
    return Completion(request.index, request.prompt, request.params.seed, len(request.ids))


class _Run:
    """A text while it is made: its clock, counts and end condition."""

    def __init__(
        self,
        request: Request,
        session: TargetSession,
        tokenizer: Tokenizer,
        show: Show,
    ) -> None:
        self.done, self._statistics = new_completion(request), DecodeStatistics()
        self._request, self._show, self._session = request, show, session
        self._text = tokenizer.stream(request.ids)
        self._start = time.perf_counter()

    def take(self, step: Step, drafting: Drafting) -> bool:
        """Take a step, which may be empty. Returns false when the text is to end here."""
        done = self.done
        done.draft_calls, done.draft_seconds = drafting.usage.calls, drafting.usage.seconds
        if step.tokens:
            self._commit(step)
        if step.end is not End.NOT and done.finish_reason == "cancelled":
            if step.end not in ENDS:
                raise Unavailable(f"the target does not go on with the text: {step.end.name}")
            done.finish_reason = ENDS[step.end]
        if done.finish_reason == "cancelled" and self._spent():
            done.finish_reason = "spent"
        return done.finish_reason == "cancelled"

    def finish(self) -> Completion:
        """The finished record, also of a text that was cut short."""
        done = self.done
        self._spent()
        if self._request.tab is not None:
            self._request.tab.close()
            done.usd = self._request.tab.usd
        self._put(self._text.finish(), NOBODY)
        self._count()
        done.gap_p50, done.gap_p99, done.gap_max = gaps_of([done])
        return done

    def _commit(self, step: Step) -> None:
        done, before = self.done, len(self.done.token_ids)
        done.seconds = time.perf_counter() - self._start
        done.time_to_first_token = done.time_to_first_token or done.seconds
        for token, proposer in zip(step.tokens, step.proposers, strict=True):
            done.token_ids.append(token)
            if token in self._request.stop_ids:
                done.finish_reason = "stop"
                break
            self._put(self._text.push(token), proposer)
        made = len(done.token_ids) - before
        self._statistics.count(step.proposers[:made])
        done.arrivals.append(done.seconds)
        done.chunk_tokens.append(made)
        self._count()

    def _count(self) -> None:
        """Copy the counts of session and proposers to the record."""
        done, traffic, statistics = self.done, self._session.traffic, self._statistics
        tokens, accepted = len(done.token_ids), statistics.num_accepted_tokens
        for name in _COUNTED:
            setattr(done, name, getattr(traffic, name))
        done.lone_forwards, done.target_seconds = traffic.lone, traffic.model_seconds
        done.num_draft_tokens = candidates = max(traffic.nodes - traffic.forwards, 0)
        done.num_accepted_tokens, done.accepted_at_depth = accepted, statistics.accepted_at_depth
        named = statistics.by_proposer.items()
        done.accepted_by = {PROPOSERS[kind]: count for kind, count in named}
        drafted = traffic.forwards - traffic.lone
        done.acceptance_length = tokens / traffic.forwards if traffic.forwards else 0.0
        done.acceptance_length_drafted = 1 + accepted / drafted if drafted else 0.0
        done.acceptance_rate = accepted / candidates if candidates else 0.0
        done.tokens_per_second = tokens / done.seconds if done.seconds else 0.0

    def _spent(self) -> bool:
        """Count what was taken. Returns whether the budget is spent."""
        tab = self._request.tab
        if tab is None:
            return False
        tab.take(self.done.draft_seconds, self._session.traffic)
        return tab.purse.empty

    def _put(self, text: str, proposer: int) -> None:
        if text:
            self.done.text += text
            self._show(Piece(text, proposer))


def gaps_of(texts: Sequence[Completion]) -> Gaps:
    """Gaps between the pieces of these texts, all together; 0 without any."""
    gaps = [after - before for text in texts for before, after in pairwise(text.arrivals)]
    return Gaps(*np.quantile(gaps or [0.0], [0.5, 0.99, 1.0]).tolist())


_COUNTED = (
    "reused_tokens",
    "forwards", "nodes", "bytes_up", "bytes_down", "messages_up", "messages_down",
    "resumes", "reopenings", "share_seconds", "queue_seconds", "prefill_seconds",
)  # fmt: skip
"""Fields that a Completion and Traffic have in common."""


def complete(
    request: Request,
    session: TargetSession,
    drafter: Drafter,
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
    *,
    order: Decode | None = None,
    tell: Tell | None = None,
) -> Completion:
    """Decode until the text ends or `cancelled` is set. Closes the session. Raises Broken.

    order: what the target is asked for; request.order() if not given
    tell: called whenever tokens came
    """
    run = _Run(request, session, tokenizer, show)
    order = order or request.order()
    with ExitStack() as stack:
        stack.callback(session.close)
        try:
            loop = Loop(request.ids, request.params, session, order, drafter)
            stack.enter_context(closing(loop))
            for step in loop.steps():
                if not run.take(step, loop.drafting):
                    break
                if step.tokens and tell is not None:
                    tell(run.done)
                if cancelled.is_set():
                    break
        except OutriderError as error:
            run.done.finish_reason, run.done.error = "error", str(error)
            raise Broken(error, run.finish()) from error
        return run.finish()
