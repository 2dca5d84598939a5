"""Prometheus metrics of a target, with vLLM's names and meanings where they exist.

Our own names begin with outrider_. No label ever contains a session or a text. Labels are model
names, fixed sets, and names of keys (for how far proposers are trusted).

The draft is elsewhere, so some meanings differ from vLLM's. A draft is a forward pass of a session
that had candidates. A request is a session. Running are sessions that hold a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from grpc_comm.observability.server_events import (
    CallRejected,
    CandidatesDropped,
    Draining,
    Drop,
    Ending,
    Event,
    MessageReceived,
    MessageSent,
    ModelServed,
    OfModel,
    SessionEnded,
    SessionResumed,
    StreamLost,
)
from grpc_comm.observability.session_record import SessionRecords, occupancy
from inference.engine.events import Commit, EngineEvent, Evicted, Forward, Prefilled
from inference.engine.session import Session
from inference.order import End
from inference.proposer import COLOCATED, COPY, MODEL

_SECONDS = tuple(step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5))
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))
_PROPOSERS = {MODEL: "model", COPY: "copy", COLOCATED: "host"}
_KINDS = ("prefill", "decode")

COUNTERS = {
    "vllm:prompt_tokens": "Tokens of prompts, cached ones included.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:prefix_cache_queries": "Prompt tokens that were looked up.",
    "vllm:prefix_cache_hits": "Prompt tokens whose keys were cached.",
    "vllm:num_preemptions": "Idle sessions whose row was given to another session.",
    "vllm:spec_decode_num_drafts": "Forward passes of sessions with candidates.",
    "vllm:spec_decode_num_draft_tokens": "Candidates computed.",
    "vllm:spec_decode_num_accepted_tokens": "Candidates accepted.",
    "outrider_root_only_forwards": "Forward passes of sessions without candidates.",
    "outrider_credit_stalls": "Times that a session used up its credit.",
    "outrider_engine_seconds": "Seconds that the engine spent around forward passes.",
}
"""Counters of one model."""

SESSION_HISTOGRAMS = {
    "vllm:request_queue_time_seconds": (_SECONDS, "Wait until the prompt is prefilled."),
    "vllm:request_prefill_time_seconds": (_SECONDS, "Forward passes of a prompt."),
    "outrider_forward_queue_seconds": (_SECONDS, "Wait between forward passes of a session."),
    "vllm:time_to_first_token_seconds": (_SECONDS, "From Open to the first tokens."),
    "vllm:inter_token_latency_seconds": (_SECONDS, "Between two forward passes of a session."),
    "vllm:request_time_per_output_token_seconds": (_SECONDS, "Per token after the first."),
    "vllm:e2e_request_latency_seconds": (_SECONDS, "From Open to the last tokens."),
    "vllm:request_prompt_tokens": (_TOKENS, "Tokens of a session's prompt."),
    "vllm:request_generation_tokens": (_TOKENS, "Tokens generated in a session."),
}
"""Histograms over sessions of one model, with their buckets."""

FORWARD_HISTOGRAMS = {
    "outrider_forward_seconds": (_SECONDS, "One forward pass of the model."),
    "outrider_batch_rows": (_ROWS, "Sessions in a forward pass."),
}
FORWARD_COUNTERS = {
    "outrider_computed_rows": "Rows of forward passes, padding included.",
    "outrider_useful_nodes": "Tree nodes and prompt tokens in forward passes.",
    "outrider_computed_nodes": "Nodes of forward passes, padding included.",
}
"""Metrics of one model's forward passes, by kind: prefill or decode."""

GAUGES = {
    "vllm:num_requests_running": ("rows_held", "Sessions that hold a row."),
    "vllm:num_requests_waiting": ("in_line", "Sessions queued for a row."),
    "vllm:kv_cache_usage_perc": ("usage", "Share of KV slots that sessions use; 1 is all."),
    "outrider_rows": ("rows", "Rows of the KV cache."),
    "outrider_used_slots": ("slots_used", "KV slots that sessions use."),
    "outrider_cached_tokens": ("cached_tokens", "Tokens cached in free rows."),
}
"""Gauges of an engine at the moment of a scrape: field of Occupancy, help."""


class Metrics:
    """A Listener that counts events, and a collector of engines' occupancy at a scrape."""

    def __init__(self, records: SessionRecords) -> None:
        self._records, self._served = records, list[ModelServed]()
        self.registry = CollectorRegistry()
        model = ["model_name"]
        self._counters = {name: self._counter(name, text, model) for name, text in COUNTERS.items()}
        self._by_depth = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Candidates accepted, by depth below the root, from 0.",
            [*model, "position"],
        )
        self._of_sessions = self._histograms(SESSION_HISTOGRAMS, model)
        self._of_forwards = self._histograms(FORWARD_HISTOGRAMS, [*model, "kind"])
        self._forward_counters = {
            name: self._counter(name, text, [*model, "kind"])
            for name, text in FORWARD_COUNTERS.items()
        }
        self._streams_lost = self._counter("outrider_streams_lost", "Streams that broke.")
        self._resumed = self._counter("outrider_sessions_resumed", "Sessions resumed.")
        self._rejected = self._counter(
            "outrider_rejected", "Calls that ended with an error, by gRPC status code.", ["code"]
        )
        self._ended = self._counter("outrider_sessions_ended", "Sessions ended.", ["reason"])
        self._dropped = self._counter(
            "outrider_dropped_candidates",
            "Candidates never computed: above the key's rate (rate), too late (late), or the least "
            "valuable of a session with too many (cap).",
            ["reason"],
        )
        self._bytes = self._counter(
            "outrider_wire_bytes", "Bytes of messages from clients (up) and to them.", ["direction"]
        )
        self._draining = Gauge(
            "outrider_draining", "1 when no new sessions are accepted.", registry=self.registry
        )
        self._drains = False
        for family, labels in (
            (self._ended, [reason.value for reason in Ending]),
            (self._dropped, [reason.value for reason in Drop]),
            (self._bytes, ["up", "down"]),
        ):
            for label in labels:
                family.labels(label)
        self.registry.register(self)

    @property
    def health(self) -> str:
        """The target's state: loading, then serving, then draining."""
        if self._drains:
            return "draining"
        return "serving" if self._served else "loading"

    def __call__(self, event: Event) -> None:
        match event:
            case OfModel(model, of_engine):
                self._count(model, of_engine)
            case MessageReceived(size):
                self._bytes.labels("up").inc(size)
            case MessageSent(size):
                self._bytes.labels("down").inc(size)
            case CandidatesDropped(candidates, why):
                self._dropped.labels(why.value).inc(candidates)
            case StreamLost():
                self._streams_lost.inc()
            case SessionResumed():
                self._resumed.inc()
            case SessionEnded(session, reason):
                self._ended.labels(reason.value).inc()
                self._observe_session(session)
            case CallRejected(code):
                self._rejected.labels(code).inc()
            case ModelServed(_, description):
                self._served.append(event)
                self._create_series(description.model)
            case Draining():
                self._drains = True
                self._draining.set(1)

    def collect(self) -> Iterator[Metric]:
        """Yield the engines' occupancy at this moment."""
        model = ["model_name"]
        gauges = [GaugeMetricFamily(name, text, labels=model) for name, (_, text) in GAUGES.items()]
        states = GaugeMetricFamily(
            "outrider_sessions", "Open sessions, by state.", labels=[*model, "state"]
        )
        trust = GaugeMetricFamily(
            "outrider_calibration_factor",
            "Factor on the chances that a key's proposers claim, by the least depth.",
            labels=[*model, "key", "proposer", "depth"],
        )
        info = GaugeMetricFamily(
            "outrider_target_info",
            "1; the labels describe the target.",
            labels=[*model, "device", "dtype", "version"],
        )
        for engine, description in list(self._served):
            now, name = occupancy(engine), description.model
            for family, (field, _) in zip(gauges, GAUGES.values(), strict=True):
                family.add_metric([name], getattr(now, field))
            for state, count in now.states.items():
                states.add_metric([name, state.value], count)
            for key, calibration in engine.calibrations.items():
                for (kind, depth), factor in calibration.factors.items():
                    trust.add_metric([name, key, _PROPOSERS[kind], str(depth)], factor)
            labels = [name, description.device, description.dtype, description.server_version]
            info.add_metric(labels, 1)
        yield from (*gauges, states, trust, info)

    def _count(self, model: str, event: EngineEvent) -> None:
        match event:
            case Forward():
                self._count_forward(model, event)
            case Commit():
                self._count_commit(model, event)
            case Prefilled(session, opened):
                self._add(model, "vllm:prompt_tokens", session.length)
                self._add(model, "vllm:prefix_cache_queries", session.length)
                self._add(model, "vllm:prefix_cache_hits", opened.reused_tokens)
                self._observe(model, "vllm:request_queue_time_seconds", opened.queue_seconds)
                self._observe(model, "vllm:request_prefill_time_seconds", opened.prefill_seconds)
            case Evicted():
                self._add(model, "vllm:num_preemptions", 1)

    def _count_forward(self, model: str, done: Forward) -> None:
        kind = "prefill" if done.prefill else "decode"
        self._of_forwards["outrider_forward_seconds"].labels(model, kind).observe(
            done.model_seconds
        )
        self._of_forwards["outrider_batch_rows"].labels(model, kind).observe(done.rows)
        for name, count in (
            ("outrider_computed_rows", done.padded_rows),
            ("outrider_useful_nodes", done.nodes),
            ("outrider_computed_nodes", done.padded_rows * done.padded_nodes),
        ):
            self._forward_counters[name].labels(model, kind).inc(count)
        self._add(model, "outrider_engine_seconds", done.engine_seconds)

    def _count_commit(self, model: str, commit: Commit) -> None:
        record = self._records.of(commit.session)
        self._add(model, "vllm:generation_tokens", len(commit.tokens))
        if commit.candidates:
            self._add(model, "vllm:spec_decode_num_drafts", 1)
            self._add(model, "vllm:spec_decode_num_draft_tokens", commit.candidates)
            self._add(model, "vllm:spec_decode_num_accepted_tokens", commit.accepted)
        else:
            self._add(model, "outrider_root_only_forwards", 1)
        for depth in range(commit.accepted):
            self._by_depth.labels(model, str(depth)).inc()
        if commit.credit <= 0 and commit.session.end is End.NOT:
            self._add(model, "outrider_credit_stalls", 1)
        self._observe(model, "outrider_forward_queue_seconds", commit.queue_seconds)
        self._observe(model, "vllm:time_to_first_token_seconds", record.first_seconds)
        self._observe(model, "vllm:inter_token_latency_seconds", record.gap)

    def _observe_session(self, session: Session) -> None:
        """Count a session that has ended, if it had a forward pass."""
        record, tokens = self._records.of(session), session.made
        if tokens:
            later = (record.last_at - record.first_at) / (tokens - 1) if tokens > 1 else None
            for name, value in (
                ("vllm:request_time_per_output_token_seconds", later),
                ("vllm:e2e_request_latency_seconds", record.seconds),
                ("vllm:request_prompt_tokens", session.prompt_length),
                ("vllm:request_generation_tokens", tokens),
            ):
                self._observe(record.model, name, value)

    def _add(self, model: str, name: str, count: float) -> None:
        self._counters[name].labels(model).inc(count)

    def _observe(self, model: str, name: str, value: float | None) -> None:
        if value is not None:
            self._of_sessions[name].labels(model).observe(value)

    def _create_series(self, model: str) -> None:
        """Make a model's series visible from now on, even while they are empty."""
        for family in (*self._counters.values(), *self._of_sessions.values()):
            family.labels(model)
        for family in (*self._forward_counters.values(), *self._of_forwards.values()):
            for kind in _KINDS:
                family.labels(model, kind)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histograms(
        self, table: Mapping[str, tuple[Sequence[float], str]], labels: Sequence[str]
    ) -> dict[str, Histogram]:
        return {
            name: Histogram(name, text, labels, buckets=buckets, registry=self.registry)
            for name, (buckets, text) in table.items()
        }
