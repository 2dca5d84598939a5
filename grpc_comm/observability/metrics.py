"""Prometheus metrics of a target, with vLLM's names and meanings where they exist.

Other names begin with outrider_. No label contains a session id or user content. Label values are
model names, members of fixed sets, and names of keys (for the trust in each proposer).

The draft runs on another machine, so some meanings differ from vLLM's. A draft is a session's
forward pass with candidates. A request is a session. A running request is a session with a row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from grpc_comm.observability.log import log_event
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import End
from inference.proposer import COLOCATED, COPY, MODEL


class State(Enum):
    """The activity of a session."""

    IN_LINE = "in_line"  # waits for a row
    PREFILL = "prefill"
    DECODE = "decode"
    CREDIT = "credit"  # paused until its client has acknowledged more
    WAITING = "waiting"  # waits for its client: no Decode, no Go, or the output has ended
    PARKED = "parked"  # waits for its client, and its row was lent to another session
    AWAY = "away"  # its stream broke


def state_of(session: Session) -> State:
    """Return the session's current activity, without taking a lock."""
    if session.wants_row:
        if session.row is None:
            return State.IN_LINE
        return State.PREFILL if session.opening is not None else State.DECODE
    if session.detached:
        return State.AWAY
    if session.row is None:
        return State.PARKED
    is_paused = session.order is not None and session.end is End.NOT and session.allowed == 0
    return State.CREDIT if is_paused else State.WAITING


def count_sessions(engine: Engine, state: State) -> int:
    """Return the number of the engine's sessions in this state, which may change meanwhile."""
    return sum(state_of(session) is state for session in engine.sessions)


def _used_slots(engine: Engine) -> int:
    sequences = [session.sequence for session in engine.sessions]
    return sum(sequence.cached for sequence in sequences if sequence is not None)


def _used_share(engine: Engine) -> float:
    return _used_slots(engine) / (engine.model.rows * engine.model.capacity)


GAUGES: dict[str, tuple[str, Callable[[Engine], float]]] = {
    "vllm:num_requests_running": (
        "Sessions that hold a row.",
        lambda engine: engine.model.rows - engine.free_rows,
    ),
    "vllm:num_requests_waiting": (
        "Sessions queued for a row.",
        lambda engine: count_sessions(engine, State.IN_LINE),
    ),
    "vllm:kv_cache_usage_perc": ("Share of KV slots that sessions use; 1 is all.", _used_share),
    "outrider_rows": ("Rows of the KV cache.", lambda engine: engine.model.rows),
    "outrider_used_slots": ("KV slots that sessions use.", _used_slots),
    "outrider_cached_tokens": ("Tokens cached in free rows.", lambda engine: engine.cached_tokens),
}
"""Gauges of an engine by name: help, and a function that returns the current value."""


_SECONDS = tuple(step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5))
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))
_PROPOSERS = {MODEL: "model", COPY: "copy", COLOCATED: "host"}
BY_MODEL = ["model_name"]
BY_FORWARD = ["model_name", "kind"]  # kind of forward pass: prefill or decode

COUNTERS = {
    "vllm:prompt_tokens": (BY_MODEL, "Tokens of prompts, cached ones included."),
    "vllm:generation_tokens": (BY_MODEL, "Tokens generated."),
    "vllm:prefix_cache_queries": (BY_MODEL, "Prompt tokens that were looked up."),
    "vllm:prefix_cache_hits": (BY_MODEL, "Prompt tokens whose keys were cached."),
    "vllm:num_preemptions": (BY_MODEL, "Idle sessions whose row was given to another session."),
    "vllm:spec_decode_num_drafts": (BY_MODEL, "Forward passes of sessions with candidates."),
    "vllm:spec_decode_num_draft_tokens": (BY_MODEL, "Candidates computed."),
    "vllm:spec_decode_num_accepted_tokens": (BY_MODEL, "Candidates accepted."),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        [*BY_MODEL, "position"],
        "Candidates accepted, by depth below the root, from 0.",
    ),
    "outrider_root_only_forwards": (BY_MODEL, "Forward passes of sessions without candidates."),
    "outrider_credit_stalls": (BY_MODEL, "Times that a session used up its credit."),
    "outrider_engine_seconds": (BY_MODEL, "Seconds that the engine spent around forward passes."),
    "outrider_computed_rows": (BY_FORWARD, "Rows of forward passes, padding included."),
    "outrider_useful_nodes": (BY_FORWARD, "Tree nodes and prompt tokens in forward passes."),
    "outrider_computed_nodes": (BY_FORWARD, "Nodes of forward passes, padding included."),
    "outrider_streams_lost": ([], "Streams that broke."),
    "outrider_sessions_resumed": ([], "Sessions resumed."),
    "outrider_sessions_ended": (["reason"], "Sessions ended."),
    "outrider_rejected": (["code"], "Calls that ended with an error, by gRPC status code."),
    "outrider_dropped_candidates": (
        ["reason"],
        "Candidates never computed: above the key's rate (rate), too late (late), or the least "
        "valuable of a session with too many (cap).",
    ),
    "outrider_wire_bytes": (["direction"], "Bytes of messages from clients (up) and to them."),
}
"""Counters by name: labels, and help."""

HISTOGRAMS = {
    "vllm:request_queue_time_seconds": (BY_MODEL, _SECONDS, "Wait until the prompt is prefilled."),
    "vllm:request_prefill_time_seconds": (BY_MODEL, _SECONDS, "Forward passes of a prompt."),
    "vllm:time_to_first_token_seconds": (BY_MODEL, _SECONDS, "From Open to the first tokens."),
    "vllm:inter_token_latency_seconds": (BY_MODEL, _SECONDS, "Between two passes of a session."),
    "vllm:request_time_per_output_token_seconds": (
        BY_MODEL,
        _SECONDS,
        "Per token after the first.",
    ),
    "vllm:e2e_request_latency_seconds": (BY_MODEL, _SECONDS, "From Open to the last tokens."),
    "vllm:request_prompt_tokens": (BY_MODEL, _TOKENS, "Tokens of a session's prompt."),
    "vllm:request_generation_tokens": (BY_MODEL, _TOKENS, "Tokens generated in a session."),
    "outrider_forward_queue_seconds": (BY_MODEL, _SECONDS, "Wait between passes of a session."),
    "outrider_forward_seconds": (BY_FORWARD, _SECONDS, "One forward pass of the model."),
    "outrider_batch_rows": (BY_FORWARD, _ROWS, "Sessions in a forward pass."),
}
"""Histograms by name: labels, buckets, and help."""


class Ending(Enum):
    """The reason why a session ended."""

    CLOSED = "closed"  # by its client
    REFUSED = "refused"  # its client sent an invalid request
    FAILED = "failed"  # an internal error of the target
    EXPIRED = "expired"  # its client did not return within the lease
    DISPLACED = "displaced"  # lost its stream, and was ended for a new session of the same key
    DRAINED = "drained"  # the target shut down


class Metrics:
    """The metrics of one target, updated where the events happen.

    A ModelObserver updates the metrics with the label of its model.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._engines: list[tuple[str, Engine]] = []
        self._draining = False
        self._counters = {
            name: Counter(name, text, labels, registry=registry)
            for name, (labels, text) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(name, text, labels, buckets=buckets, registry=registry)
            for name, (labels, buckets, text) in HISTOGRAMS.items()
        }
        self._info = Gauge(
            "outrider_target_info",
            "1; the labels describe the target.",
            [*BY_MODEL, "device", "dtype", "version"],
            registry=registry,
        )
        ended, dropped = "outrider_sessions_ended", "outrider_dropped_candidates"
        self.sessions_ended = {reason: self.counter(ended, reason.value) for reason in Ending}
        self.dropped = {why: self.counter(dropped, why) for why in ("rate", "late", "cap")}
        self.bytes_up = self.counter("outrider_wire_bytes", "up")
        self.bytes_down = self.counter("outrider_wire_bytes", "down")
        registry.register(self)

    def counter(self, name: str, *labels: str) -> Counter:
        """Return the counter with these labels. It is exported from now on, even if it is 0."""
        family = self._counters[name]
        return family.labels(*labels) if labels else family

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the histogram with these labels. It is exported from now on, even if empty."""
        return self._histograms[name].labels(*labels)

    @property
    def health(self) -> str:
        """The target's state: loading, serving, or draining."""
        if self._draining:
            return "draining"
        return "serving" if self._engines else "loading"

    def add_engine(self, engine: Engine, served: Description) -> None:
        """Export the session metrics of an engine, which accepts sessions from now on."""
        self._engines.append((served.model, engine))
        self._info.labels(served.model, served.device, served.dtype, served.server_version).set(1)

    def reject(self, code: str, tenant: str = "") -> None:
        """Count and log a call that ended with an error.

        code: name of the gRPC status code
        tenant: empty for an unknown caller
        """
        self.counter("outrider_rejected", code).inc()
        log_event("call rejected", logging.WARNING, code=code, tenant=tenant)

    def drain(self) -> None:
        """Record that the target accepts no new sessions and asks clients to leave."""
        self._draining = True
        log_event("draining")

    def collect(self) -> Iterator[Metric]:
        """Yield what is read when metrics are scraped: gauges, sessions, and trust in proposers."""
        engines = list(self._engines)
        yield GaugeMetricFamily(
            "outrider_draining", "1 when no new sessions are accepted.", value=int(self._draining)
        )
        for name, (text, value_of) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=BY_MODEL)
            for model, engine in engines:
                gauge.add_metric([model], value_of(engine))
            yield gauge
        states = [*BY_MODEL, "state"]
        sessions = GaugeMetricFamily("outrider_sessions", "Open sessions, by state.", labels=states)
        for model, engine in engines:
            for state in State:
                sessions.add_metric([model, state.value], count_sessions(engine, state))
        yield sessions
        trust = GaugeMetricFamily(
            "outrider_calibration_factor",
            "Factor on the chances that a key's proposers claim, by the least depth.",
            labels=[*BY_MODEL, "key", "proposer", "depth"],
        )
        for model, engine in engines:
            for key, calibration in engine.calibrations.items():
                for (kind, depth), factor in calibration.factors.items():
                    trust.add_metric([model, key, _PROPOSERS[kind], str(depth)], factor)
        yield trust
