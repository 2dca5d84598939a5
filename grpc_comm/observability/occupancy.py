"""Use of an engine's rows at a moment, and what each of its sessions is doing."""

from __future__ import annotations

from collections import Counter
from enum import Enum

from inference.engine.engine import Engine
from inference.engine.session import Session
from inference.order import End

GAUGES = {
    "vllm:num_requests_running": "Sessions that hold a row.",
    "vllm:num_requests_waiting": "Sessions queued for a row.",
    "vllm:kv_cache_usage_perc": "Share of KV slots that sessions use; 1 is all.",
    "outrider_rows": "Rows of the KV cache.",
    "outrider_used_slots": "KV slots that sessions use.",
    "outrider_cached_tokens": "Tokens cached in free rows.",
}
"""Gauges of an engine, by name: help."""


class State(Enum):
    """Activity of a session."""

    IN_LINE = "in_line"  # waits for a row
    PREFILL = "prefill"
    DECODE = "decode"
    CREDIT = "credit"  # paused until its client has acknowledged more
    WAITING = "waiting"  # for its client: no order, no Go, or the text has ended
    PARKED = "parked"  # for its client, and its row was lent to another session
    AWAY = "away"  # its stream broke


def state_of(session: Session) -> State:
    """Return the session's activity at this moment, without taking a lock."""
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


def count_states(engine: Engine) -> Counter[State]:
    """Return the number of the engine's sessions in each state. Sessions continue meanwhile."""
    return Counter(map(state_of, engine.sessions))


def read_gauges(engine: Engine) -> dict[str, float]:
    """Return the values of GAUGES at this moment. Sessions continue meanwhile."""
    sequences = [session.sequence for session in engine.sessions]
    used = sum(sequence.cached for sequence in sequences if sequence is not None)
    rows = engine.model.rows
    return {
        "vllm:num_requests_running": rows - engine.free_rows,
        "vllm:num_requests_waiting": count_states(engine)[State.IN_LINE],
        "vllm:kv_cache_usage_perc": used / (rows * engine.model.capacity),
        "outrider_rows": rows,
        "outrider_used_slots": used,
        "outrider_cached_tokens": engine.cached_tokens,
    }
