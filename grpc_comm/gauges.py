"""What engines hold, as metrics that are looked at when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from grpc_comm.ledger import occupancy
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.proposer import COPY, DEVICE, HOST, MODEL

_KINDS = {MODEL: "model", COPY: "copy", HOST: "host", DEVICE: "device"}


class EngineGauges:
    """A collector over engines that are added as they are loaded."""

    def __init__(self) -> None:
        self._engines: list[tuple[Engine, Description]] = []

    def add(self, engine: Engine, description: Description) -> None:
        self._engines.append((engine, description))

    def collect(self) -> Iterator[Metric]:
        label = ["model_name"]
        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Sessions that hold a row.", labels=label
        )
        waiting = GaugeMetricFamily(
            "vllm:num_requests_waiting", "Sessions in line for a row.", labels=label
        )
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share of all KV slots that sessions on rows use; 1 is all.",
            labels=label,
        )
        rows = GaugeMetricFamily("outrider_rows", "Rows of the KV cache.", labels=label)
        slots = GaugeMetricFamily(
            "outrider_used_slots", "KV slots that sessions on rows use.", labels=label
        )
        cached = GaugeMetricFamily(
            "outrider_cached_tokens",
            "Tokens that free rows remember for sessions to start from.",
            labels=label,
        )
        states = GaugeMetricFamily(
            "outrider_sessions", "Open sessions, by what they do.", labels=[*label, "state"]
        )
        trust = GaugeMetricFamily(
            "outrider_calibration_factor",
            "What the chances that a key's proposers claim are multiplied by, by the least depth.",
            labels=[*label, "key", "proposer", "depth"],
        )
        info = GaugeMetricFamily(
            "outrider_target_info",
            "1; what the labels say.",
            labels=[*label, "device", "dtype", "version"],
        )
        for engine, description in self._engines:
            seen, model = occupancy(engine), description.model
            running.add_metric([model], seen.rows_held)
            waiting.add_metric([model], seen.in_line)
            usage.add_metric([model], seen.slots_used / seen.slots)
            rows.add_metric([model], seen.rows)
            slots.add_metric([model], seen.slots_used)
            cached.add_metric([model], engine.cached_tokens)
            for state, count in seen.states.items():
                states.add_metric([model, state.value], count)
            for key, calibration in engine.calibrations.items():
                for (kind, depth), factor in calibration.factors.items():
                    trust.add_metric([model, key, _KINDS[kind], str(depth)], factor)
            info.add_metric(
                [model, description.device, description.dtype, description.server_version], 1
            )
        yield from (running, waiting, usage, rows, slots, cached, states, trust, info)
