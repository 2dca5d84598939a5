"""What must hold whatever happens, and at the end."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from tests.simulate.clients import Client, Text
from tests.simulate.plan import LONG_PATIENCE, Plan
from tests.simulate.targets import TargetProcess

SECRET = "token-that-nobody-may-see"
OF_KEYS = ("revoke key", "lower limits")
IN_PATIENCE = frozenset({"Unavailable", "Busy", "Gone"})
"""Errors that name a target that cannot be had."""


def texts(clients: Sequence[Client], plan: Plan) -> Iterator[str]:
    """Yield each text that is not the target's own, or ended as nothing explains."""
    kinds = {fault.kind for fault in plan.faults}
    for client in clients:
        for text in client.texts:
            due = text.due(plan.kinds)
            if text.tokens != due[: len(text.tokens)]:
                at = next(i for i, token in enumerate(text.tokens) if due[i : i + 1] != [token])
                yield f"{text} is another from token {at} on"
            elif text.outcome == "whole" and len(text.tokens) != len(due):
                yield f"{text} ends after {len(text.tokens)} tokens of {len(due)}"
            elif not client.process.dead and not _explained(text, kinds):
                yield f"{text} ends with {text.outcome}: {text.error}"


def _explained(text: Text, kinds: set[str]) -> bool:
    """Whether a text may end like this, after faults of these kinds."""
    if text.outcome in ("whole", "left"):
        return True
    if text.outcome in IN_PATIENCE:
        return text.client.patience < LONG_PATIENCE or "kill" in text.error
    if text.outcome == "InvalidRequest":
        return "revoke key" in kinds and "refuses this client" in text.error
    if text.outcome == "LimitExceeded":
        return "lower limits" in kinds
    if text.outcome == "OutriderError":
        return "failing forward" in kinds
    return False


def leaks(targets: Sequence[TargetProcess]) -> Iterator[str]:
    """Yield what targets still hold when every client has gone."""
    for target in targets:
        if not target.runs or target.server is None:
            yield f"{target.process.name} does not run at the end"
            continue
        engine = target.engine
        held = {
            "sessions": len(engine.sessions),
            "rows": engine.model.rows - engine.free_rows,
        }
        for what, number in held.items():
            if number:
                yield f"{target.process.name} holds {number} {what} at the end"


def logs(records: Sequence[logging.LogRecord], happened: Sequence[tuple[float, str]]) -> Iterator[str]:
    """Yield log lines with a secret, and errors that no fault explains."""
    kinds = {kind for _, kind in happened}
    for record in records:
        line = record.getMessage()
        if record.exc_info:
            line += f" ({record.exc_info[1]!r})"
        if SECRET in line:
            yield f"a secret in a log line: {line}"
        if record.levelno >= logging.ERROR and not (
            ("keys" in line and "spoil keys" in kinds)
            or ("a session failed" in line and "failing forward" in kinds)
        ):
            yield f"logged: {line}"
