"""One prompt from ids to text, with everything that is reported about it: stop ids, clocks, counts
and what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any, NamedTuple

from inference.cost.objective import Effort
from inference.decode import Step, TargetSession, Unverified, decode, decode_offline
from inference.errors import OutriderError, Unavailable
from inference.order import Decode, End, Pace
from inference.proposer import NOBODY, Proposer
from inference.sampling import SamplingParams
from inference.stats import DecodeStatistics
from inference.text import TextStream, Tokenizer
from outrider.purse import Tab

PROPOSERS = ("model", "copy", "host", "device")
"""Names of inference.proposer's kinds."""

ENDS = {
    End.STOP_ID: "stop",
    End.MAX_TOKENS: "length",
    End.LIMIT: "length",
    End.SPENT: "spent",
}


class Piece(NamedTuple):
    """Text that became certain, and whether a proposer had named its last token; or text that
    nobody has verified yet.
    """

    text: str
    accepted: bool
    verified: bool = True


Show = Callable[[Piece], None]
"""Is given the text of a request as it becomes certain."""


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it. stop_ids end the text; they are part of the tokens but
    not of the text.
    """

    index: int
    prompt: str
    ids: Sequence[int]
    params: SamplingParams
    max_new_tokens: int
    stop_ids: frozenset[int]
    tab: Tab | None = None  # where what it takes is counted, and what the run may cost

    def order(self, pace: Pace = Pace.GO_ON, *, beside: bool = False) -> Decode:
        """What a target is asked for."""
        end = len(self.ids) + self.max_new_tokens
        return Decode(end, self.stop_ids, pace=pace, beside=beside)


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
    # stop, length, cancelled, spent (what the run may cost, perhaps before it began), unverified,
    # or error
    finish_reason: str = "cancelled"
    error: str = ""  # what ended it before its end; what was verified until then stands above
    forwards: int = 0  # of the target that it took part in
    lone_forwards: int = 0  # of these, without candidates
    nodes: int = 0  # computed for it in these, roots included
    num_draft_tokens: int = 0  # of these, candidates
    num_accepted_tokens: int = 0
    accepted_by: dict[str, int] = field(default_factory=dict)  # kind of proposer -> tokens
    acceptance_length: float = 0.0  # tokens a forward
    acceptance_length_drafted: float = 0.0  # the same of forwards with candidates
    acceptance_rate: float = 0.0  # of the candidates that were computed
    bytes_up: int = 0
    bytes_down: int = 0
    messages_up: int = 0
    messages_down: int = 0
    resumes: int = 0  # streams that broke and were taken up again
    reopenings: int = 0  # sessions that went on elsewhere, or here with a prefill
    seconds: float = 0.0
    time_to_first_token: float = 0.0
    tokens_per_second: float = 0.0
    draft_calls: int = 0  # of models here
    draft_seconds: float = 0.0  # in these
    usd: float | None = None  # where prices are known
    target_seconds: float = 0.0  # of the forwards
    share_seconds: float = 0.0  # its part of these, which is less where others took part
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    # [chunk] from the request to the tokens that came together
    arrivals: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)  # [chunk] how many those were
    # [depth - 1] forwards that accepted a candidate of this depth
    accepted_at_depth: list[int] = field(default_factory=list)
    # of the target, as it describes itself: an emulated one says so; empty for a model in this
    # process
    device: str = ""
    baseline: Completion | None = None
    speedup: float | None = None

    @property
    def whole(self) -> bool:
        """It ended as the text does."""
        return self.finish_reason in ("stop", "length")

    @property
    def effort(self) -> Effort:
        """What it took, with the target held all the time."""
        return Effort(self.seconds, self.draft_seconds, self.bytes_up, self.bytes_down)

    @property
    def effort_of_forwards(self) -> Effort:
        """The same where its part of the target's forwards is paid and nothing else of it."""
        return self.effort._replace(wall=self.share_seconds + self.prefill_seconds)

    def record(self) -> dict[str, Any]:
        """As plain data for JSON; an error stands there if there is one."""
        return {name: value for name, value in asdict(self).items() if value or name != "error"}


class Broken(OutriderError):
    """An error ended a text. done: what was verified until then."""

    def __init__(self, error: OutriderError, done: Completion) -> None:
        super().__init__(str(error))
        self.done = done


Tell = Callable[[Completion], None]
"""Hears how far a text has come."""


Complete = Callable[[Request, Show, Event], Completion]
"""Makes the text of a request, or what there is of it when the event is set."""


def new_completion(request: Request) -> Completion:
    """Of a text that has not begun."""
    return Completion(request.index, request.prompt, request.params.seed, len(request.ids))


class _Run:
    """A completion being made: clock, text, counts and the end condition."""

    def __init__(
        self,
        request: Request,
        session: TargetSession,
        proposers: Sequence[Proposer],
        tokenizer: Tokenizer,
        show: Show,
    ) -> None:
        self.done, self._statistics = new_completion(request), DecodeStatistics()
        self._request, self._show = request, show
        self._session, self._proposers = session, proposers
        self._calls, self._drafting = _drafted(proposers)  # before this text
        self._tokenizer = tokenizer
        self._text = tokenizer.stream(request.ids)
        self._guess: TextStream | None = None
        self._start = time.perf_counter()

    def take(self, step: Step) -> bool:
        """Take what has come, or that nothing has; false when the text is to end here."""
        if step.tokens:
            self._commit(step)
        done = self.done
        if step.end is not End.NOT and done.finish_reason == "cancelled":
            if step.end not in ENDS:
                raise Unavailable(f"the target does not go on with the text: {step.end.name}")
            done.finish_reason = ENDS[step.end]
        if done.finish_reason == "cancelled" and self._spent():
            done.finish_reason = "spent"
        return done.finish_reason == "cancelled"

    def guess(self, token: int) -> None:
        """Take one that nobody has verified: the next verified token takes all of them back."""
        if self._guess is None:
            self._guess = self._tokenizer.stream([*self._request.ids, *self.done.token_ids])
        text = "" if token in self._request.stop_ids else self._guess.push(token)
        self.done.unverified_text += text
        self._show(Piece(text, accepted=False, verified=False))

    def finish(self) -> Completion:
        """The record, also of a text that was cut short."""
        done = self.done
        self._spent()
        if self._request.tab is not None:
            self._request.tab.close()
            done.usd = self._request.tab.usd
        if not done.unverified_text:  # which stands behind the verified one
            self._put(self._text.finish(), False)
        self._count()
        return done

    def _commit(self, step: Step) -> None:
        done, before = self.done, len(self.done.token_ids)
        self._guess, done.unverified_text = None, ""
        done.seconds = time.perf_counter() - self._start
        done.time_to_first_token = done.time_to_first_token or done.seconds
        for token, proposer in zip(step.tokens, step.proposers, strict=True):
            done.token_ids.append(token)
            if token in self._request.stop_ids:
                done.finish_reason = "stop"
                break
            self._put(self._text.push(token), proposer != NOBODY)
        made = len(done.token_ids) - before
        self._statistics.count(step.proposers[:made])
        done.arrivals.append(done.seconds)
        done.chunk_tokens.append(made)
        self._count()

    def _count(self) -> None:
        """What session and proposers say so far."""
        done, traffic, statistics = self.done, self._session.traffic, self._statistics
        tokens, accepted = len(done.token_ids), statistics.num_accepted_tokens
        for name in _COUNTED:
            setattr(done, name, getattr(traffic, name))
        done.lone_forwards, done.target_seconds = traffic.lone, traffic.model_seconds
        calls, drafting = _drafted(self._proposers)
        done.draft_calls, done.draft_seconds = calls - self._calls, drafting - self._drafting
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
        """Count what was taken, and say whether nothing more may be."""
        tab = self._request.tab
        if tab is None:
            return False
        tab.take(_drafted(self._proposers)[1] - self._drafting, self._session.traffic)
        return tab.purse.empty

    def _put(self, text: str, accepted: bool) -> None:
        if text:
            self.done.text += text
            self._show(Piece(text, accepted))


def _drafted(proposers: Sequence[Proposer]) -> tuple[int, float]:
    """Calls of their models so far, and seconds in these."""
    calls = sum(proposer.calls for proposer in proposers)
    return calls, sum(proposer.drafting for proposer in proposers)


_COUNTED = (
    "forwards", "nodes", "bytes_up", "bytes_down", "messages_up", "messages_down",
    "resumes", "reopenings", "share_seconds", "queue_seconds", "prefill_seconds",
)  # fmt: skip
"""Names that a Completion and Traffic have in common."""


def complete(
    request: Request,
    session: TargetSession,
    proposers: Sequence[Proposer],
    tokenizer: Tokenizer,
    show: Show,
    cancelled: Event,
    *,
    order: Decode | None = None,
    offline: bool = False,
    tell: Tell | None = None,
) -> Completion:
    """Decode until the text ends or `cancelled` is set; session and proposers are closed.

    order: what the target is asked for, if not request.order().  offline: while the target is
    away, the first of the proposers goes on alone; what nobody verified in the end is marked as
    such.  tell: hears of the text whenever tokens came.  Raises Broken.
    """
    run = _Run(request, session, proposers, tokenizer, show)
    steps = _steps(request, session, proposers, order or request.order(), offline)
    with ExitStack() as stack:
        for proposer in proposers:
            stack.callback(proposer.close)
        stack.callback(session.close)
        try:
            for step in steps:
                if isinstance(step, Unverified):
                    run.guess(step.token)
                elif not run.take(step):
                    break
                elif step.tokens and tell is not None:
                    tell(run.done)
                if cancelled.is_set():
                    break
        except OutriderError as error:
            if isinstance(error, Unavailable) and run.done.unverified_text:
                run.done.finish_reason = "unverified"
                return run.finish()
            run.done.finish_reason, run.done.error = "error", str(error)
            raise Broken(error, run.finish()) from error
        return run.finish()


def _steps(
    request: Request,
    session: TargetSession,
    proposers: Sequence[Proposer],
    order: Decode,
    offline: bool,
) -> Iterator[Step | Unverified]:
    if offline:
        return decode_offline(request.ids, request.params, session, order, proposers[0])
    return decode(request.ids, request.params, session, order, proposers)
