"""Prometheus metrics of an endpoint's requests, under vLLM's names if vLLM has the metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.text.completion import Completion

Value = Callable[[Completion], float]

COUNTERS: dict[str, tuple[str, Value]] = {
    "vllm:prompt_tokens": ("Tokens of prompts.", lambda done: done.prompt_tokens),
    "vllm:generation_tokens": ("Generated tokens.", lambda done: len(done.token_ids)),
    "outrider_forwards": ("Forward passes.", lambda done: done.traffic.forwards),
    "vllm:spec_decode_num_drafts": (
        "Forward passes with candidates.",
        lambda done: done.traffic.drafted,
    ),
    "vllm:spec_decode_num_draft_tokens": (
        "Candidates computed.",
        lambda done: done.num_draft_tokens,
    ),
    "vllm:spec_decode_num_accepted_tokens": (
        "Candidates accepted.",
        lambda done: done.num_accepted_tokens,
    ),
    "outrider_cost_usd": ("US dollars, as far as known.", lambda done: done.cost.value or 0.0),
}
HISTOGRAMS: dict[str, tuple[str, int, Value]] = {
    "vllm:e2e_request_latency_seconds": ("Time of a whole text.", 0, lambda done: done.seconds),
    "vllm:time_to_first_token_seconds": (
        "Time to first token.",
        1,
        lambda done: done.time_to_first_token,
    ),
    "vllm:time_per_output_token_seconds": (
        "Time per later token.",
        2,
        lambda done: (done.seconds - done.time_to_first_token) / (len(done.token_ids) - 1),
    ),
}
"""Each metric's description, the minimum tokens of an output that has a value, and the value."""

GAUGES = {
    "vllm:num_requests_running": "Texts whose tokens arrive.",
    "vllm:num_requests_waiting": "Texts that wait for their first token.",
    "vllm:kv_cache_usage_perc": "Share of the target's rows that texts of this server use.",
}
BUCKETS = tuple(step * 10.0**power for power in range(-3, 3) for step in (1, 2, 5))  # seconds


class TextMetrics:
    """Counts completions. page() adds gauges of the requests in progress."""

    def __init__(self, model: str) -> None:
        self._registry, self._model = CollectorRegistry(), model
        self._counters = [
            (self._metric(Counter, name, text), value) for name, (text, value) in COUNTERS.items()
        ]
        self._histograms = [
            (self._metric(Histogram, name, text, buckets=BUCKETS), minimum, value)
            for name, (text, minimum, value) in HISTOGRAMS.items()
        ]
        self._gauges = [self._metric(Gauge, name, text) for name, text in GAUGES.items()]
        self._ended = Counter(
            "vllm:request_success",
            "Texts by why they ended.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def _metric(self, kind: Any, name: str, text: str, **args: Any) -> Any:
        return kind(name, text, ["model_name"], registry=self._registry, **args).labels(self._model)

    def count(self, done: Completion) -> None:
        """Count a completion."""
        self._ended.labels(self._model, done.finish_reason).inc()
        for counter, value in self._counters:
            counter.inc(value(done))
        for histogram, minimum, value in self._histograms:
            if len(done.token_ids) >= minimum:
                histogram.observe(value(done))

    def page(self, texts: int, waiting: int, rows: int) -> bytes:
        """Return the metrics in Prometheus's text format.

        texts: number of requests in progress, including the waiting ones
        rows: number of the target's rows, each of which caches a sequence
        """
        running = texts - waiting
        values = (running, waiting, min(running / max(rows, 1), 1.0))
        for gauge, value in zip(self._gauges, values, strict=True):
            gauge.set(value)
        return generate_latest(self._registry)
