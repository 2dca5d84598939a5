"""Counts and logs events of one model's sessions."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from grpc_comm.observability.log import log_event
from grpc_comm.observability.metrics import BY_MODEL, COUNTERS, HISTOGRAMS, Ending, Metrics
from inference.engine.batch_runner import EngineEvent, Evicted, Prefilled
from inference.engine.forward import Commit, Forward
from inference.engine.sessions.session import Session
from inference.order import End, Opened

_BY_DEPTH = "vllm:spec_decode_num_accepted_tokens_per_pos"
_ID_CHARACTERS = 8  # number of leading characters of a session id in the log


@dataclass
class _Times:
    """Id and times of one session, in seconds of time.perf_counter(); 0: not yet."""

    name: str = ""
    opened_at: float = 0.0
    first_at: float = 0.0  # time of the first tokens
    last_at: float = 0.0  # time of the latest tokens

    @property
    def seconds(self) -> float:
        """Seconds from Open to the latest tokens; 0 before the first tokens."""
        return self.last_at - self.opened_at if self.last_at else 0.0


class ModelObserver:
    """Counts events of one model's engine, and counts and logs events of its sessions.

    count() runs on the engine's thread, other methods on the event loop. All are quick.
    """

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics, self._model = metrics, model
        self._counters = {
            name: metrics.counter(name, model)
            for name, (labels, _) in COUNTERS.items()
            if labels == BY_MODEL
        }
        self._histograms = {
            name: metrics.histogram(name, model)
            for name, (labels, _, _) in HISTOGRAMS.items()
            if labels == BY_MODEL
        }
        self._lock = threading.Lock()  # guards the map of sessions
        self._times = WeakKeyDictionary[Session, _Times]()

    def count(self, event: EngineEvent) -> None:
        """Count an event of the engine."""
        match event:
            case Forward():
                self._count_forward(event)
            case Commit():
                self._count_commit(event)
            case Prefilled(session, opened):
                self._count_prompt(session, opened)
            case Evicted(session):
                self._counters["vllm:num_preemptions"].inc()
                log_event("row lent to another", **self._who(session), length=session.length)

    def name_session(self, session: Session, session_id: str) -> None:
        """Store a session's id. The log shows its first characters."""
        signs = session_id[:_ID_CHARACTERS]
        name = "".join(sign if sign.isalnum() or sign in "-_" else "?" for sign in signs)
        self._of(session).name = name

    def record_opened(self, session: Session, opened: Opened) -> None:
        """Log that a session's prompt is prefilled."""
        log_event(
            "session opened",
            **self._who(session),
            model=self._model,
            prompt_tokens=session.prompt_length,
            reused_tokens=opened.reused_tokens,
            queue_seconds=round(opened.queue_seconds, 4),
            prefill_seconds=round(opened.prefill_seconds, 4),
        )

    def record_lost(self, session: Session) -> None:
        """Record that a session's stream broke. The session is kept until its lease expires."""
        self._metrics.counter("outrider_streams_lost").inc()
        log_event("stream lost", **self._who(session))

    def record_resumed(self, session: Session) -> None:
        """Record that another stream continues a session."""
        self._metrics.counter("outrider_sessions_resumed").inc()
        log_event("session resumed", **self._who(session))

    def record_end(self, session: Session, reason: Ending) -> None:
        """Record the end of a session."""
        self._metrics.sessions_ended[reason].inc()
        times, spent, tokens = self._of(session), session.spent, session.made
        if tokens:
            self._observe("vllm:e2e_request_latency_seconds", times.seconds)
            self._observe("vllm:request_prompt_tokens", session.prompt_length)
            self._observe("vllm:request_generation_tokens", tokens)
        if tokens > 1:
            token_seconds = (times.last_at - times.first_at) / (tokens - 1)
            self._observe("vllm:request_time_per_output_token_seconds", token_seconds)
        accepted = tokens - spent.forwards  # each forward pass adds a token chosen by the target
        log_event(
            "session ended",
            **self._who(session),
            reason=reason.value,
            prompt_tokens=session.prompt_length,
            tokens=tokens,
            forwards=spent.forwards,
            candidates=spent.candidates,
            accepted=accepted,
            acceptance_length=round(1 + accepted / spent.drafted, 4) if spent.drafted else None,
            seconds=round(times.seconds, 4),
        )

    def _count_forward(self, done: Forward) -> None:
        labels = self._model, "prefill" if done.prefill else "decode"
        counter, histogram = self._metrics.counter, self._metrics.histogram
        histogram("outrider_forward_seconds", *labels).observe(done.model_seconds)
        histogram("outrider_batch_rows", *labels).observe(done.rows)
        rows, nodes = done.padded
        counter("outrider_computed_rows", *labels).inc(rows)
        counter("outrider_useful_nodes", *labels).inc(done.nodes)
        counter("outrider_computed_nodes", *labels).inc(rows * nodes)
        self._counters["outrider_engine_seconds"].inc(done.engine_seconds)

    def _count_prompt(self, session: Session, opened: Opened) -> None:
        waited = opened.queue_seconds + opened.prefill_seconds
        self._of(session).opened_at = time.perf_counter() - waited
        self._counters["vllm:prompt_tokens"].inc(session.length)
        self._counters["vllm:prefix_cache_queries"].inc(session.length)
        self._counters["vllm:prefix_cache_hits"].inc(opened.reused_tokens)
        self._observe("vllm:request_queue_time_seconds", opened.queue_seconds)
        self._observe("vllm:request_prefill_time_seconds", opened.prefill_seconds)

    def _count_commit(self, commit: Commit) -> None:
        self._counters["vllm:generation_tokens"].inc(len(commit.tokens))
        if commit.candidates:
            self._counters["vllm:spec_decode_num_drafts"].inc()
            self._counters["vllm:spec_decode_num_draft_tokens"].inc(commit.candidates)
            self._counters["vllm:spec_decode_num_accepted_tokens"].inc(commit.accepted)
        else:
            self._counters["outrider_root_only_forwards"].inc()
        for depth in range(commit.accepted):
            self._metrics.counter(_BY_DEPTH, self._model, str(depth)).inc()
        if commit.credit <= 0 and commit.session.end is End.NOT:
            self._counters["outrider_credit_stalls"].inc()
        self._observe("outrider_forward_queue_seconds", commit.queue_seconds)
        times, now = self._of(commit.session), time.perf_counter()
        if times.last_at:
            self._observe("vllm:inter_token_latency_seconds", now - times.last_at)
        else:
            self._observe("vllm:time_to_first_token_seconds", now - times.opened_at)
            times.first_at = now
        times.last_at = now

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _of(self, session: Session) -> _Times:
        with self._lock:
            return self._times.setdefault(session, _Times())

    def _who(self, session: Session) -> dict[str, Any]:
        return {"session": self._of(session).name, "tenant": session.tenant}
