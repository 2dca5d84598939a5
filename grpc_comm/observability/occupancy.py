"""Current use of an engine's rows, and the activity of each session."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import End


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
