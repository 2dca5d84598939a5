"""Prometheus metrics of a target, with vLLM's names and meanings where they exist.

Our own names begin with outrider_. No label ever holds a session or a text. Labels are the model's
name, sets that are known beforehand, and names of keys (for how far proposers are trusted).

The draft is elsewhere, so some meanings differ from vLLM's. A draft is a forward of a session in
which it had candidates. A request is a session. Running are sessions that hold a row, whether or
not a forward is under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from grpc_comm.observability.server_events import (
    Drop,
    Ending,
    Event,
    ModelServed,
    OfModel,
    SessionEnded,
)
from grpc_comm.observability.statistics import ModelTotals, Statistics, occupancy
from inference.engine.events import Commit, Forward, Prefilled
from inference.proposer import COLOCATED, COPY, MODEL

_SECONDS = tuple(
    step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5)
)  # 0.1 ms to 500 s
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))
_PROPOSERS = {MODEL: "model", COPY: "copy", COLOCATED: "host"}
_KINDS = ("prefill", "decode")
_MODEL, _FORWARDS = ["model_name"], ["model_name", "kind"]

MetricRow: TypeAlias = tuple[str, str, str]
"""Name of a metric, the field with its value, and its help."""

HISTOGRAMS: dict[tuple[type, tuple[float, ...]], tuple[MetricRow, ...]] = {
    (Forward, _SECONDS): (
        ("outrider_forward_seconds", "model_seconds", "One forward of the model."),
    ),
    (Forward, _ROWS): (("outrider_batch_rows", "rows", "Sessions in a forward."),),
    (Prefilled, _SECONDS): (
        (
            "vllm:request_queue_time_seconds",
            "queue_seconds",
            "A session's wait, for a row and for forwards, until its prompt is prefilled.",
        ),
        (
            "vllm:request_prefill_time_seconds",
            "prefill_seconds",
            "A session's forwards of its prompt.",
        ),
    ),
    (Commit, _SECONDS): (
        (
            "outrider_forward_queue_seconds",
            "forward_queue_seconds",
            "A session's wait from one forward to its next.",
        ),
        (
            "vllm:time_to_first_token_seconds",
            "first_seconds",
            "From Open to a session's first tokens.",
        ),
        (
            "vllm:inter_token_latency_seconds",
            "gap",
            "Between two forwards of a session; one may bring several tokens.",
        ),
    ),
    (SessionEnded, _SECONDS): (
        (
            "vllm:request_time_per_output_token_seconds",
            "seconds_per_token",
            "Of each token after a session's first.",
        ),
        ("vllm:e2e_request_latency_seconds", "seconds", "From Open to a session's last tokens."),
    ),
    (SessionEnded, _TOKENS): (
        ("vllm:request_prompt_tokens", "prompt_tokens", "Tokens of a session's prompt."),
        ("vllm:request_generation_tokens", "tokens", "Tokens made in a session."),
    ),
}
"""Histograms, by the event at which they count, and their buckets.

The field is one of the Forward, or of the session's Entry. A value of None is not counted.
"""

OF_TARGET: tuple[MetricRow, ...] = (
    ("outrider_streams_lost", "streams_lost", "Streams that broke while their session went on."),
    (
        "outrider_sessions_resumed",
        "sessions_resumed",
        "Sessions that another stream went on with.",
    ),
)
"""Counters of the whole target: name, field of Statistics, help."""

OF_MODEL: tuple[MetricRow, ...] = (
    ("vllm:prompt_tokens", "prompt_tokens", "Tokens of prompts, cached ones included."),
    ("vllm:generation_tokens", "tokens", "Tokens made."),
    ("vllm:prefix_cache_queries", "prompt_tokens", "Tokens of prompts that were looked up."),
    ("vllm:prefix_cache_hits", "reused_tokens", "Tokens of prompts whose keys were there."),
    ("vllm:num_preemptions", "evictions", "Silent sessions whose row was lent to another."),
    ("vllm:spec_decode_num_drafts", "drafts", "Forwards of sessions that had candidates."),
    ("vllm:spec_decode_num_draft_tokens", "candidates", "Candidates computed."),
    ("vllm:spec_decode_num_accepted_tokens", "accepted", "Candidates accepted."),
    ("outrider_root_only_forwards", "root_only", "Forwards of sessions without candidates."),
    ("outrider_credit_stalls", "credit_stalls", "Times that a session used up its credit."),
    ("outrider_engine_seconds", "engine_seconds", "Spent by the engine around forwards."),
)
"""Counters of one model: name, field of ModelTotals, help."""

OF_FORWARDS: tuple[MetricRow, ...] = (
    ("outrider_computed_rows", "padded_rows", "Rows of forwards, padding included."),
    ("outrider_useful_nodes", "nodes", "Nodes of trees and tokens of prompts in forwards."),
    ("outrider_computed_nodes", "padded_nodes", "Nodes of forwards, padding included."),
)
"""Counters of one model's forwards of one kind: name, field of ForwardTotals, help."""

OF_ENGINES: tuple[MetricRow, ...] = (
    ("vllm:num_requests_running", "rows_held", "Sessions that hold a row."),
    ("vllm:num_requests_waiting", "in_line", "Sessions in line for a row."),
    (
        "vllm:kv_cache_usage_perc",
        "usage",
        "Share of all KV slots that sessions on rows use; 1 is all.",
    ),
    ("outrider_rows", "rows", "Rows of the KV cache."),
    ("outrider_used_slots", "slots_used", "KV slots that sessions on rows use."),
    (
        "outrider_cached_tokens",
        "cached_tokens",
        "Tokens that free rows remember for sessions to start from.",
    ),
)
"""Gauges of an engine at this moment: name, field of Occupancy, help."""


class Metrics:
    """A Listener and collector of the metrics in the tables."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self.registry = statistics, CollectorRegistry()
        self._histograms = defaultdict[type, list[tuple[str, Histogram]]](list)  # by event
        for (event, buckets), rows in HISTOGRAMS.items():
            labels = _FORWARDS if event is Forward else _MODEL
            for name, field, text in rows:
                made = Histogram(name, text, labels, buckets=buckets, registry=self.registry)
                self._histograms[event].append((field, made))
        self.registry.register(self)
        statistics.listeners.append(self)

    def __call__(self, event: Event) -> None:
        match event:
            case OfModel(model, Forward() as forward):
                self._observe(Forward, forward, model, "prefill" if forward.prefill else "decode")
            case OfModel(model, Prefilled() | Commit() as happened):
                self._observe(type(happened), self.statistics.entry(happened.session), model)
            case SessionEnded(session, _):
                entry = self.statistics.entry(session)
                if entry.forwards:
                    self._observe(SessionEnded, entry, entry.model)
            case ModelServed(_, description):
                self._show(description.model)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that is not a histogram."""
        yield from _counters(self.statistics)
        yield from _model_counters(self.statistics.models)
        yield from _gauges(self.statistics)

    def _observe(self, event: type, record: object, *labels: str) -> None:
        """Count a record's values in the histograms of an event."""
        for field, histogram in self._histograms[event]:
            value = getattr(record, field)
            if value is not None:
                histogram.labels(*labels).observe(value)

    def _show(self, model: str) -> None:
        """Make this model's series visible from now on, even while they are empty."""
        for event, histograms in self._histograms.items():
            for _, histogram in histograms:
                for more in [[kind] for kind in _KINDS] if event is Forward else [[]]:
                    histogram.labels(model, *more)


def _counters(target: Statistics) -> Iterator[Metric]:
    for name, field, text in OF_TARGET:
        yield CounterMetricFamily(name, text, value=getattr(target, field))
    rejected = CounterMetricFamily(
        "outrider_rejected",
        "Calls that ended with an error, by gRPC status code.",
        labels=["code"],
    )
    for code, count in list(target.rejected.items()):
        rejected.add_metric([code], count)
    ended = CounterMetricFamily(
        "outrider_sessions_ended", "Sessions that are over, by reason.", labels=["reason"]
    )
    for reason in Ending:
        ended.add_metric([reason.value], target.ended[reason])
    dropped = CounterMetricFamily(
        "outrider_dropped_candidates",
        "Candidates that will never be computed: they came faster than their key may send them "
        "(rate), after the target had passed their place (late), or were the least valuable of a "
        "session that has too many (cap).",
        labels=["reason"],
    )
    for why in Drop:
        dropped.add_metric([why.value], target.dropped[why])
    wire = CounterMetricFamily(
        "outrider_wire_bytes",
        "Bytes of messages, up from clients and down to them.",
        labels=["direction"],
    )
    wire.add_metric(["up"], target.bytes_up)
    wire.add_metric(["down"], target.bytes_down)
    yield from (rejected, ended, dropped, wire)
    yield GaugeMetricFamily(
        "outrider_draining", "1 once no new sessions are taken.", value=target.draining
    )


def _model_counters(models: dict[str, ModelTotals]) -> Iterator[Metric]:
    for name, field, text in OF_MODEL:
        family = CounterMetricFamily(name, text, labels=_MODEL)
        for model, totals in list(models.items()):
            family.add_metric([model], getattr(totals, field))
        yield family
    for name, field, text in OF_FORWARDS:
        family = CounterMetricFamily(name, text, labels=_FORWARDS)
        for model, totals in list(models.items()):
            for kind in _KINDS:
                family.add_metric([model, kind], getattr(getattr(totals, kind), field))
        yield family
    by_depth = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "Candidates accepted, by depth below the root, from 0.",
        labels=["model_name", "position"],
    )
    for model, totals in list(models.items()):
        for depth, count in enumerate(list(totals.accepted_by_depth)):
            by_depth.add_metric([model, str(depth)], count)
    yield by_depth


def _gauges(target: Statistics) -> Iterator[Metric]:
    """Yield what engines hold at this moment."""
    families = [GaugeMetricFamily(name, text, labels=_MODEL) for name, _, text in OF_ENGINES]
    states = GaugeMetricFamily(
        "outrider_sessions", "Open sessions, by what they do.", labels=[*_MODEL, "state"]
    )
    trust = GaugeMetricFamily(
        "outrider_calibration_factor",
        "What the chances that a key's proposers claim are multiplied by, by the least depth.",
        labels=[*_MODEL, "key", "proposer", "depth"],
    )
    info = GaugeMetricFamily(
        "outrider_target_info",
        "1; what the labels say.",
        labels=[*_MODEL, "device", "dtype", "version"],
    )
    for engine, told in list(target.engines):
        seen, model = occupancy(engine), told.model
        for family, (_, field, _) in zip(families, OF_ENGINES, strict=True):
            family.add_metric([model], getattr(seen, field))
        for state, count in seen.states.items():
            states.add_metric([model, state.value], count)
        for key, calibration in engine.calibrations.items():
            for (kind, depth), factor in calibration.factors.items():
                trust.add_metric([model, key, _PROPOSERS[kind], str(depth)], factor)
        info.add_metric([model, told.device, told.dtype, told.server_version], 1)
    yield from (*families, states, trust, info)
