"""Prometheus metrics of a target, with vLLM's names and meanings where they exist.

Our own names begin with outrider_. No label ever holds a session or a text. Labels are the model's
name, sets that are known beforehand, and names of keys (for how far proposers are trusted).

The draft is elsewhere, so some meanings differ from vLLM's. A draft is a forward of a session in
which it had candidates. A request is a session. Running are sessions that hold a row, whether or
not a forward is under way.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpc_comm.observability.events import Drop, Ending, Event, ModelServed, OfModel, SessionEnded
from grpc_comm.observability.statistics import Entry, ModelTotals, Statistics, occupancy
from inference.engine.forward import Commit, EngineEvent, Forward, Prefilled
from inference.errors import MissingExtra
from inference.proposer import COLOCATED, COPY, DEVICE, MODEL

try:
    from prometheus_client import CollectorRegistry, Histogram
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as error:
    raise MissingExtra(
        "metrics need the prometheus-client package: pip install 'outrider[metrics]'"
    ) from error

_SECONDS = tuple(
    step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5)
)  # 0.1 ms to 500 s
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))
_KINDS = {MODEL: "model", COPY: "copy", COLOCATED: "host", DEVICE: "device"}

OF_TARGET = (
    ("outrider_streams_lost", "streams_lost", "Streams that broke while their session went on."),
    (
        "outrider_sessions_resumed",
        "sessions_resumed",
        "Sessions that another stream went on with.",
    ),
)
"""Counters of the whole target: name, field of Statistics, help."""

OF_MODEL = (
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

OF_FORWARDS = (
    ("outrider_computed_rows", "padded_rows", "Rows of forwards, padding included."),
    ("outrider_useful_nodes", "nodes", "Nodes of trees and tokens of prompts in forwards."),
    ("outrider_computed_nodes", "padded_nodes", "Nodes of forwards, padding included."),
)
"""Counters of one model's forwards of one kind: name, field of ForwardTotals, help."""


class Metrics:
    """A Listener and collector: histograms of events, counters and gauges of the statistics."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics, self.registry = statistics, CollectorRegistry()
        self._histograms = _Histograms(self.registry)
        self.registry.register(self)
        statistics.listeners.append(self)

    def __call__(self, event: Event) -> None:
        match event:
            case OfModel(model, of_engine):
                self._of_engine(model, of_engine)
            case ModelServed(_, description):
                self._histograms.show(description.model)
            case SessionEnded(session, _):
                entry = self.statistics.entry(session)
                if entry.forwards:
                    self._ended(entry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric that is not a histogram."""
        yield from _counters(self.statistics)
        yield from _model_counters(self.statistics.models)
        yield from _gauges(self.statistics)

    def _of_engine(self, model: str, event: EngineEvent) -> None:
        histograms = self._histograms
        match event:
            case Forward():
                kind = "prefill" if event.prefill else "decode"
                histograms.forward.labels(model, kind).observe(event.model_seconds)
                histograms.rows.labels(model, kind).observe(event.rows)
            case Prefilled(_, opened):
                histograms.queue.labels(model).observe(opened.queue_seconds)
                histograms.prefill.labels(model).observe(opened.prefill_seconds)
            case Commit():
                entry = self.statistics.entry(event.session)
                histograms.forward_queue.labels(model).observe(event.queue_seconds)
                if entry.gap is None:
                    histograms.first.labels(model).observe(entry.first_at - entry.asked_at)
                else:
                    histograms.gap.labels(model).observe(entry.gap)

    def _ended(self, entry: Entry) -> None:
        histograms, model = self._histograms, entry.model
        histograms.latency.labels(model).observe(entry.last_at - entry.asked_at)
        histograms.prompt.labels(model).observe(entry.prompt_tokens)
        histograms.output.labels(model).observe(entry.tokens)
        if entry.tokens > 1:
            each = (entry.last_at - entry.first_at) / (entry.tokens - 1)
            histograms.each.labels(model).observe(each)


class _Histograms:
    """All histograms, each with a series for every model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def made(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                name, text, ["model_name", *labels], buckets=buckets, registry=registry
            )

        self.forward = made(
            "outrider_forward_seconds", "One forward of the model.", _SECONDS, "kind"
        )
        self.rows = made("outrider_batch_rows", "Sessions in a forward.", _ROWS, "kind")
        self.first = made(
            "vllm:time_to_first_token_seconds", "From Open to a session's first tokens.", _SECONDS
        )
        self.gap = made(
            "vllm:inter_token_latency_seconds",
            "Between two forwards of a session; one may bring several tokens.",
            _SECONDS,
        )
        self.each = made(
            "vllm:request_time_per_output_token_seconds",
            "Of each token after a session's first.",
            _SECONDS,
        )
        self.latency = made(
            "vllm:e2e_request_latency_seconds", "From Open to a session's last tokens.", _SECONDS
        )
        self.queue = made(
            "vllm:request_queue_time_seconds",
            "A session's wait, for a row and for forwards, until its prompt is prefilled.",
            _SECONDS,
        )
        self.prefill = made(
            "vllm:request_prefill_time_seconds", "A session's forwards of its prompt.", _SECONDS
        )
        self.forward_queue = made(
            "outrider_forward_queue_seconds",
            "A session's wait from one forward to its next.",
            _SECONDS,
        )
        self.prompt = made("vllm:request_prompt_tokens", "Tokens of a session's prompt.", _TOKENS)
        self.output = made("vllm:request_generation_tokens", "Tokens made in a session.", _TOKENS)

    def show(self, model: str) -> None:
        """Make this model's series visible from now on, even while they are empty."""
        for histogram in vars(self).values():
            if histogram in (self.forward, self.rows):
                for kind in ("prefill", "decode"):
                    histogram.labels(model, kind)
            else:
                histogram.labels(model)


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
        family = CounterMetricFamily(name, text, labels=["model_name"])
        for model, totals in list(models.items()):
            family.add_metric([model], getattr(totals, field))
        yield family
    for name, field, text in OF_FORWARDS:
        family = CounterMetricFamily(name, text, labels=["model_name", "kind"])
        for model, totals in list(models.items()):
            family.add_metric([model, "prefill"], getattr(totals.prefill, field))
            family.add_metric([model, "decode"], getattr(totals.decode, field))
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
    gauges = _Gauges()
    for engine, description in list(target.engines):
        seen, model = occupancy(engine), description.model
        gauges.running.add_metric([model], seen.rows_held)
        gauges.waiting.add_metric([model], seen.in_line)
        gauges.usage.add_metric([model], seen.slots_used / seen.slots)
        gauges.rows.add_metric([model], seen.rows)
        gauges.slots.add_metric([model], seen.slots_used)
        gauges.cached.add_metric([model], engine.cached_tokens)
        for state, count in seen.states.items():
            gauges.states.add_metric([model, state.value], count)
        for key, calibration in engine.calibrations.items():
            for (kind, depth), factor in calibration.factors.items():
                gauges.trust.add_metric([model, key, _KINDS[kind], str(depth)], factor)
        gauges.info.add_metric(
            [model, description.device, description.dtype, description.server_version], 1
        )
    yield from vars(gauges).values()


class _Gauges:
    """Families of gauges, each with a sample for every engine."""

    def __init__(self) -> None:
        def made(name: str, text: str, *labels: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(name, text, labels=["model_name", *labels])

        self.running = made("vllm:num_requests_running", "Sessions that hold a row.")
        self.waiting = made("vllm:num_requests_waiting", "Sessions in line for a row.")
        self.usage = made(
            "vllm:kv_cache_usage_perc", "Share of all KV slots that sessions on rows use; 1 is all."
        )
        self.rows = made("outrider_rows", "Rows of the KV cache.")
        self.slots = made("outrider_used_slots", "KV slots that sessions on rows use.")
        self.cached = made(
            "outrider_cached_tokens", "Tokens that free rows remember for sessions to start from."
        )
        self.states = made("outrider_sessions", "Open sessions, by what they do.", "state")
        self.trust = made(
            "outrider_calibration_factor",
            "What the chances that a key's proposers claim are multiplied by, by the least depth.",
            "key",
            "proposer",
            "depth",
        )
        self.info = made(
            "outrider_target_info", "1; what the labels say.", "device", "dtype", "version"
        )
