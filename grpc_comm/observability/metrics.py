"""Prometheus metrics of a target, with vLLM's names and meanings where they exist.

Our own names begin with outrider_. No label ever contains a session or a text. Labels are model
names, fixed sets, and names of keys (for how far proposers are trusted).

The draft is elsewhere, so some meanings differ from vLLM's. A draft is a forward pass of a session
that had candidates. A request is a session. Running are sessions that hold a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from grpc_comm.observability.log import log_event
from grpc_comm.observability.occupancy import GAUGES, State, count_states, read_gauges
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.proposer import COLOCATED, COPY, MODEL

_SECONDS = tuple(step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5))
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))
_PROPOSERS = {MODEL: "model", COPY: "copy", COLOCATED: "host"}
_MODEL = ["model_name"]

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

HISTOGRAMS = {
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


class Ending(Enum):
    """The reason why a session is over."""

    CLOSED = "closed"  # by its client
    REFUSED = "refused"  # its client sent an invalid request
    FAILED = "failed"  # an internal error of the target
    EXPIRED = "expired"  # its client did not return within the lease
    DISPLACED = "displaced"  # abandoned by its client, whose key needs its place for another
    DRAINED = "drained"  # the target ended


class Metrics:
    """The metrics of one target, which the code where an event happens counts.

    Those with a model's label are counted by its ModelObserver, and its rows are read at a scrape.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._engines: list[tuple[str, Engine]] = []
        self._draining = False
        of_forwards = [*_MODEL, "kind"]
        self.counters = self._counters(COUNTERS, _MODEL)
        self.histograms = self._histograms(HISTOGRAMS, _MODEL)
        self.forward_counters = self._counters(FORWARD_COUNTERS, of_forwards)
        self.forward_histograms = self._histograms(FORWARD_HISTOGRAMS, of_forwards)
        self.accepted = self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Candidates accepted, by depth below the root, from 0.",
            [*_MODEL, "position"],
        )
        self.streams_lost = self._counter("outrider_streams_lost", "Streams that broke.")
        self.sessions_resumed = self._counter("outrider_sessions_resumed", "Sessions resumed.")
        ended = self._counter("outrider_sessions_ended", "Sessions ended.", ["reason"])
        self.sessions_ended = {reason: ended.labels(reason.value) for reason in Ending}
        self._rejected = self._counter(
            "outrider_rejected", "Calls that ended with an error, by gRPC status code.", ["code"]
        )
        dropped = self._counter(
            "outrider_dropped_candidates",
            "Candidates never computed: above the key's rate (rate), too late (late), or the least "
            "valuable of a session with too many (cap).",
            ["reason"],
        )
        self.dropped = {reason: dropped.labels(reason) for reason in ("rate", "late", "cap")}
        wire = self._counter(
            "outrider_wire_bytes", "Bytes of messages from clients (up) and to them.", ["direction"]
        )
        self.bytes_up, self.bytes_down = wire.labels("up"), wire.labels("down")
        self._drains = Gauge(
            "outrider_draining", "1 when no new sessions are accepted.", registry=self.registry
        )
        self._info = Gauge(
            "outrider_target_info",
            "1; the labels describe the target.",
            [*_MODEL, "device", "dtype", "version"],
            registry=self.registry,
        )
        self.registry.register(self)

    @property
    def health(self) -> str:
        """The target's state: loading, then serving, then draining."""
        if self._draining:
            return "draining"
        return "serving" if self._engines else "loading"

    def add_engine(self, engine: Engine, served: Description) -> None:
        """Report the rows of an engine that accepts sessions from now on."""
        self._engines.append((served.model, engine))
        self._info.labels(served.model, served.device, served.dtype, served.server_version).set(1)

    def reject(self, code: str, tenant: str = "") -> None:
        """Count and log a call that ended with an error.

        code: name of the gRPC status code
        tenant: empty for an unknown caller
        """
        self._rejected.labels(code).inc()
        log_event("call rejected", logging.WARNING, code=code, tenant=tenant)

    def drain(self) -> None:
        """Record that no new sessions are accepted, and clients are asked to leave."""
        self._draining = True
        self._drains.set(1)
        log_event("draining")

    def collect(self) -> Iterator[Metric]:
        """Yield the engines' use of rows at this moment."""
        gauges = {
            name: GaugeMetricFamily(name, text, labels=_MODEL) for name, text in GAUGES.items()
        }
        states = GaugeMetricFamily(
            "outrider_sessions", "Open sessions, by state.", labels=[*_MODEL, "state"]
        )
        trust = GaugeMetricFamily(
            "outrider_calibration_factor",
            "Factor on the chances that a key's proposers claim, by the least depth.",
            labels=[*_MODEL, "key", "proposer", "depth"],
        )
        for model, engine in list(self._engines):
            for name, value in read_gauges(engine).items():
                gauges[name].add_metric([model], value)
            counts = count_states(engine)
            for state in State:
                states.add_metric([model, state.value], counts[state])
            for key, calibration in engine.calibrations.items():
                for (kind, depth), factor in calibration.factors.items():
                    trust.add_metric([model, key, _PROPOSERS[kind], str(depth)], factor)
        yield from (*gauges.values(), states, trust)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _counters(self, table: Mapping[str, str], labels: Sequence[str]) -> dict[str, Counter]:
        return {name: self._counter(name, text, labels) for name, text in table.items()}

    def _histograms(
        self, table: Mapping[str, tuple[Sequence[float], str]], labels: Sequence[str]
    ) -> dict[str, Histogram]:
        return {
            name: Histogram(name, text, labels, buckets=buckets, registry=self.registry)
            for name, (buckets, text) in table.items()
        }
