"""Prometheus metrics of a target: vLLM's names and meanings where it has them, ours begin with
outrider_.

No label ever holds a session or a text: labels are the model's name, sets that are known
beforehand, and, for how far proposers are trusted, the names of keys.

What differs from vLLM, because the draft is elsewhere: a draft is a forward of a session in which
it had candidates; a request is a session; running are sessions that hold a row, whether or not a
forward is under way.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpc_comm.ledger import Entry, Ledger
from grpc_comm.observer import Ending, ServiceObserver
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.engine.forward import Commit, Forward, Observer
from inference.engine.session import Opened, Session
from inference.errors import MissingExtra
from inference.order import End

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    from grpc_comm.gauges import EngineGauges
except ImportError as error:
    raise MissingExtra(
        "metrics need the prometheus-client package: pip install 'outrider[metrics]'"
    ) from error

_SECONDS = tuple(
    step * 10.0**power for power in range(-4, 3) for step in (1, 2, 5)
)  # 0.1 ms to 500 s
_TOKENS = tuple(step * 10.0**power for power in range(6) for step in (1, 2, 5))
_ROWS = tuple(2.0**power for power in range(9))


class Metrics(ServiceObserver):
    """All metrics of one target, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.health = "loading"  # then "serving", then "draining"
        self._ledger = Ledger()
        self._families = _Families(self.registry)
        self._models: dict[str, _ModelMetrics] = {}
        self._engines = EngineGauges()
        self.registry.register(self._engines)
        self._rejected = Counter(
            "outrider_rejected",
            "Calls that ended with an error, by gRPC status code.",
            ["code"],
            registry=self.registry,
        )
        self._ended = Counter(
            "outrider_sessions_ended",
            "Sessions that are over, by reason.",
            ["reason"],
            registry=self.registry,
        )
        for reason in Ending:
            self._ended.labels(reason.value)
        wire = Counter(
            "outrider_wire_bytes",
            "Bytes of messages, up from clients and down to them.",
            ["direction"],
            registry=self.registry,
        )
        self._up, self._down = wire.labels("up"), wire.labels("down")
        self._lost = Counter(
            "outrider_streams_lost",
            "Streams that broke while their session went on.",
            registry=self.registry,
        )
        self._resumed = Counter(
            "outrider_sessions_resumed",
            "Sessions that another stream went on with.",
            registry=self.registry,
        )
        self._dropped = Counter(
            "outrider_dropped_candidates",
            "Candidates that came faster than their key may send them.",
            registry=self.registry,
        )
        self._draining = Gauge(
            "outrider_draining", "1 once no new sessions are taken.", registry=self.registry
        )

    def engine(self, engine: Engine, description: Description) -> Observer:
        self.health = "serving" if self.health == "loading" else self.health
        self._engines.add(engine, description)
        model = self._models[description.model] = _ModelMetrics(
            description.model, self._families, self._ledger
        )
        return model

    def session_lost(self, session: Session) -> None:
        self._lost.inc()

    def resumed(self, session: Session) -> None:
        self._resumed.inc()

    def session_ended(self, session: Session, reason: Ending) -> None:
        self._ended.labels(reason.value).inc()
        entry = self._ledger.entry(session)
        if entry.forwards:
            self._models[entry.model].ended(entry)

    def rejected(self, code: str, tenant: str = "") -> None:
        self._rejected.labels(code).inc()

    def bytes_up(self, count: int) -> None:
        self._up.inc(count)

    def bytes_down(self, count: int) -> None:
        self._down.inc(count)

    def dropped(self, candidates: int) -> None:
        self._dropped.inc(candidates)

    def draining(self) -> None:
        self.health = "draining"
        self._draining.set(1)


class _Families:
    """Counters and histograms by name, of which each model has its own; made when first asked
    for.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        if name not in self._counters:
            self._counters[name] = Counter(
                name, text, ["model_name", *labels], registry=self._registry
            )
        return self._counters[name]

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        if name not in self._histograms:
            self._histograms[name] = Histogram(
                name, text, ["model_name", *labels], buckets=buckets, registry=self._registry
            )
        return self._histograms[name]


class _ModelMetrics(Observer):
    """What one engine tells, under its model's name."""

    def __init__(self, model: str, families: _Families, ledger: Ledger) -> None:
        self._model, self._ledger = model, ledger
        self._forwards = {
            True: _ForwardMetrics(model, "prefill", families),
            False: _ForwardMetrics(model, "decode", families),
        }
        self._drafting, self._sessions = (
            _DraftMetrics(model, families),
            _SessionMetrics(model, families),
        )
        text = "Spent by the engine around forwards."
        self._engine_seconds = families.counter("outrider_engine_seconds", text).labels(model)

    def forward(self, done: Forward) -> None:
        self._forwards[done.prefill].add(done)
        self._engine_seconds.inc(done.engine_seconds)

    def opened(self, session: Session, opened: Opened) -> None:
        self._sessions.opened(self._ledger.opened(self._model, session, opened))

    def committed(self, session: Session, commit: Commit) -> None:
        gap = self._ledger.committed(session, commit)
        self._sessions.committed(self._ledger.entry(session), gap, commit)
        self._drafting.add(commit.candidates, commit.accepted)
        if commit.credit <= 0 and session.end is End.NOT:
            self._sessions.credit_stalls.inc()

    def evicted(self, session: Session) -> None:
        self._sessions.evictions.inc()

    def ended(self, entry: Entry) -> None:
        self._sessions.ended(entry)


class _DraftMetrics:
    """What became of candidates."""

    def __init__(self, model: str, families: _Families) -> None:
        self._model = model
        self._drafts = families.counter(
            "vllm:spec_decode_num_drafts", "Forwards of sessions that had candidates."
        ).labels(model)
        self._root_only = families.counter(
            "outrider_root_only_forwards", "Forwards of sessions that had no candidates."
        ).labels(model)
        self._tokens = families.counter(
            "vllm:spec_decode_num_draft_tokens", "Candidates computed."
        ).labels(model)
        self._accepted = families.counter(
            "vllm:spec_decode_num_accepted_tokens", "Candidates accepted."
        ).labels(model)
        text = "Candidates accepted, by depth below the root, from 0."
        self._by_depth = families.counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", text, "position"
        )
        self._depths: list[Counter] = []  # no more than a tree has nodes

    def add(self, candidates: int, accepted: int) -> None:
        """Of one forward of a session."""
        if not candidates:
            return self._root_only.inc()
        self._drafts.inc()
        self._tokens.inc(candidates)
        self._accepted.inc(accepted)
        while len(self._depths) < accepted:
            self._depths.append(self._by_depth.labels(self._model, str(len(self._depths))))
        for depth in self._depths[:accepted]:
            depth.inc()


class _SessionMetrics:
    """Tokens and times of sessions."""

    def __init__(self, model: str, families: _Families) -> None:
        def counter(name: str, text: str) -> Counter:
            return families.counter(name, text).labels(model)

        def seconds(name: str, text: str) -> Histogram:
            return families.histogram(name, text, _SECONDS).labels(model)

        def tokens(name: str, text: str) -> Histogram:
            return families.histogram(name, text, _TOKENS).labels(model)

        self._prompt_tokens = counter(
            "vllm:prompt_tokens", "Tokens of prompts, those whose keys were there already included."
        )
        self._generated = counter("vllm:generation_tokens", "Tokens made.")
        self._queries = counter(
            "vllm:prefix_cache_queries", "Tokens of prompts that were looked up in rows."
        )
        self._hits = counter(
            "vllm:prefix_cache_hits", "Tokens of prompts whose keys were there already."
        )
        self.evictions = counter(
            "vllm:num_preemptions", "Silent sessions whose row was lent to another."
        )
        self.credit_stalls = counter(
            "outrider_credit_stalls", "Times that a session used up the credit of its client."
        )
        self._first = seconds(
            "vllm:time_to_first_token_seconds", "From Open to a session's first tokens."
        )
        self._gap = seconds(
            "vllm:inter_token_latency_seconds",
            "Between two forwards of a session; one may bring several tokens.",
        )
        self._each = seconds(
            "vllm:request_time_per_output_token_seconds", "Of each token after a session's first."
        )
        self._latency = seconds(
            "vllm:e2e_request_latency_seconds", "From Open to a session's last tokens."
        )
        self._queue = seconds(
            "vllm:request_queue_time_seconds",
            "A session's wait, for a row and for forwards, until its prompt is prefilled.",
        )
        self._prefill = seconds(
            "vllm:request_prefill_time_seconds", "A session's forwards of its prompt."
        )
        self._forward_queue = seconds(
            "outrider_forward_queue_seconds", "A session's wait from one forward to its next."
        )
        self._prompt = tokens("vllm:request_prompt_tokens", "Tokens of a session's prompt.")
        self._output = tokens("vllm:request_generation_tokens", "Tokens made in a session.")

    def opened(self, entry: Entry) -> None:
        self._prompt_tokens.inc(entry.prompt_tokens)
        self._queries.inc(entry.prompt_tokens)
        self._hits.inc(entry.reused_tokens)
        self._queue.observe(entry.queue_seconds)
        self._prefill.observe(entry.prefill_seconds)

    def committed(self, entry: Entry, gap: float | None, commit: Commit) -> None:
        """gap: seconds since the session's forward before this one."""
        self._generated.inc(len(commit.tokens))
        self._forward_queue.observe(commit.queue_seconds)
        if gap is None:
            self._first.observe(entry.first_at - entry.asked_at)
        else:
            self._gap.observe(gap)

    def ended(self, entry: Entry) -> None:
        self._latency.observe(entry.last_at - entry.asked_at)
        self._prompt.observe(entry.prompt_tokens)
        self._output.observe(entry.tokens)
        if entry.tokens > 1:
            self._each.observe((entry.last_at - entry.first_at) / (entry.tokens - 1))


class _ForwardMetrics:
    """Forwards of one kind."""

    def __init__(self, model: str, kind: str, families: _Families) -> None:
        def counter(name: str, text: str) -> Counter:
            return families.counter(name, text, "kind").labels(model, kind)

        self._seconds = families.histogram(
            "outrider_forward_seconds", "One forward of the model.", _SECONDS, "kind"
        ).labels(model, kind)
        self._rows = families.histogram(
            "outrider_batch_rows", "Sessions in a forward.", _ROWS, "kind"
        ).labels(model, kind)
        self._computed_rows = counter(
            "outrider_computed_rows", "Rows of forwards, padding included."
        )
        self._nodes = counter(
            "outrider_useful_nodes", "Nodes of trees and tokens of prompts in forwards."
        )
        self._computed_nodes = counter(
            "outrider_computed_nodes", "Nodes that forwards computed, padding included."
        )

    def add(self, done: Forward) -> None:
        self._seconds.observe(done.model_seconds)
        self._rows.observe(done.rows)
        self._computed_rows.inc(done.padded_rows)
        self._nodes.inc(done.nodes)
        self._computed_nodes.inc(done.padded_rows * done.padded_nodes)
