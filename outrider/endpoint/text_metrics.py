"""Prometheus metrics of the server, with vLLM's names where they exist."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.text.generation import Generation

_SECONDS = tuple(step * 10.0**power for power in range(-3, 3) for step in (1, 2, 5))


class TextMetrics:
    """Counts finished texts. `running` is a gauge that the caller keeps."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        self._model, label = model, ["model_name"]

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, label, registry=self.registry).labels(model)

        def histogram(name: str, text: str) -> Histogram:
            made = Histogram(name, text, label, registry=self.registry, buckets=_SECONDS)
            return made.labels(model)

        running = Gauge(
            "vllm:num_requests_running", "Texts being made.", label, registry=self.registry
        )
        self.running = running.labels(model)
        self._prompt = counter("vllm:prompt_tokens", "Tokens of prompts.")
        self._made = counter("vllm:generation_tokens", "Tokens made.")
        self._forwards = counter("outrider_forwards", "Forwards that texts took part in.")
        self._drafts = counter("vllm:spec_decode_num_drafts", "Forwards with candidates.")
        self._drafted = counter("vllm:spec_decode_num_draft_tokens", "Candidates computed.")
        self._accepted = counter("vllm:spec_decode_num_accepted_tokens", "Candidates accepted.")
        self._usd = counter("outrider_cost_usd", "US dollars of texts, as far as known.")
        self._first = histogram("vllm:time_to_first_token_seconds", "Time to first token.")
        self._each = histogram("vllm:time_per_output_token_seconds", "Time per later token.")
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Time of a whole text.")
        self._ended = Counter(
            "vllm:request_success",
            "Texts by why they ended.",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )

    def count(self, text: Generation) -> None:
        """Count a finished text."""
        done = text.statistics
        tokens = len(text.token_ids)
        self._ended.labels(self._model, text.finish_reason).inc()
        self._prompt.inc(text.prompt_tokens)
        self._made.inc(tokens)
        self._forwards.inc(done.forwards)
        self._drafts.inc(done.forwards - done.lone_forwards)
        self._drafted.inc(done.num_draft_tokens)
        self._accepted.inc(done.num_accepted_tokens)
        self._usd.inc(text.cost.value or 0.0)
        self._whole.observe(done.seconds)
        if tokens:
            self._first.observe(done.time_to_first_token)
        if tokens > 1:
            self._each.observe((done.seconds - done.time_to_first_token) / (tokens - 1))

    def page(self) -> bytes:
        """The metrics as Prometheus reads them."""
        return generate_latest(self.registry)
