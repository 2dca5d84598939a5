"""Invariants of a run, and what must hold at its end."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from grpc_comm.client.remote_session import REACH_SECONDS
from inference.errors import InvalidRequest
from inference.order import Pace
from inference.times_file import read_profile
from tests.simulate.client_process import Client, Text
from tests.simulate.memory import reachable
from tests.simulate.plan import LONG_PATIENCE, MOST_SESSIONS, Plan
from tests.simulate.target_process import DRAFTED, TargetProcess
from tests.support.hostile import SECRET

STANDSTILL = 30.0
"""Seconds without a token that nothing but the work of others explains."""

RECOVERY = 60.0
"""Seconds that a fault's consequences last at most."""

WINDOW, PROMISE = 256, 0.98
"""Tokens over which every text has this part of its root-only rate."""

SURELY = 24
"""Tokens of which one is a candidate, if candidates are right as often as not."""

ENDED = "outrider_sessions_ended_total"
IN_PATIENCE = frozenset({"Unavailable", "Busy", "Gone"})
"""Errors that name a target that cannot be had."""


def texts(clients: Sequence[Client], plan: Plan) -> Iterator[str]:
    """Yield each text that is not the target's own, or ended as nothing explains."""
    for client in clients:
        for text in client.texts:
            due = text.due()
            if text.tokens != due[: len(text.tokens)]:
                at = next(i for i, token in enumerate(text.tokens) if due[i : i + 1] != [token])
                yield f"{text} is another from token {at} on"
            elif text.outcome == "whole" and text.plan.stop is None and not text.is_scored:
                yield f"{text} has log-probabilities that are not the target's"
            elif text.outcome == "whole" and len(text.tokens) != len(due):
                yield f"{text} ends after {len(text.tokens)} tokens of {len(due)}"
            elif text.outcome == "whole" and text.forwards > len(text.tokens):
                yield f"{text} is charged {text.forwards} forwards for {len(text.tokens)} tokens"
            elif client.process.dead:
                continue
            elif text.resumes + text.reopenings and not plan.faults and not plan.crowded:
                yield f"{text} lost its stream, and there was no fault"
            elif _is_undrafted(text, client, plan):
                yield f"{text} has a good draft, and no candidate was ever accepted"
            elif _is_patience_renewed(text, client):
                yield f"{text} is looked for beyond its client's patience"
            elif gap := _longest_gap(text, plan):
                yield f"{text} stood still for {gap:.0f} s"
            elif not _explained(text, plan):
                yield f"{text} ends with {text.outcome}: {text.error}"


def _explained(text: Text, plan: Plan) -> bool:
    """Whether a text may end like this, after such faults."""
    kinds = {fault.kind for fault in plan.faults}
    if text.outcome in ("whole", "left", "hostile"):
        return True
    if text.outcome in IN_PATIENCE:
        longest = max(LONG_PATIENCE, plan.waits)
        return bool(plan.faults or plan.crowded) and text.client.patience < longest
    if "failing disk" in kinds and "cannot be read" in text.error:
        return True
    if text.outcome in ("InvalidRequest", "LimitExceeded"):
        return ("revoke key" if "refuses this client" in text.error else "lower limits") in kinds
    if text.outcome == "OutriderError":
        return "failing forward" in kinds
    return False


def _is_undrafted(text: Text, client: Client, plan: Plan) -> bool:
    """Whether no candidate was accepted of a draft that is right in 7 of 10 cases, where the target
    waits for it, or is slower and its forwards delay nobody.
    """
    drafts, good = {one.draft for one in plan.clients}, {"growing", "both"}
    if plan.steady:
        free = plan.node == 0 or (drafts <= good and plan.node < 0.1)
        waits = free and text.client.draft in good and plan.call < 1
    else:
        alone = len(plan.clients) == 1 and not (client.plan.at_once and len(client.texts) > 1)
        waits = alone and text.plan.pace is Pace.WAIT and drafts <= {"growing", "both", "rounds"}
    ruled = text.params.adjusts  # and its draft is not
    return waits and not ruled and len(text.tokens) >= SURELY and not text.accepted


def _is_patience_renewed(text: Text, client: Client) -> bool:
    """Whether a search began later after the first loss than patience lasts, without a token.

    A target that says that a session waits, or owes nothing, begins patience anew. The reader tells
    when tokens came, and a draft that runs on the reader's thread delays it.
    """
    delayed = client.plan.slow_reader or (client.plan.draft and not client.plan.threaded)
    begins_anew = text.plan.pace is Pace.WAIT or text.reopenings
    if delayed or begins_anew or (client.plan.at_once and len(client.texts) > 1):
        return False
    for before, after in pairwise([*text.came, text.ended]):
        losses = [at for at in client.losses if before < at < after]
        if losses and losses[-1] - losses[0] > max(client.plan.patience, REACH_SECONDS) + 1:
            return True
    return False


def _longest_gap(text: Text, plan: Plan) -> float:
    """The longest time without a token, where that is longer than anything explains; else 0.

    Faults may take as long as their patience, so only times that none of them touches count.
    """
    moments = [*text.came, text.ended] if text.came else []
    most = STANDSTILL + 3 * plan.work + (10 * plan.lease if plan.limit < MOST_SESSIONS else 0)
    for before, after in pairwise(moments):
        faults = (1_000 + fault.at + fault.seconds for fault in plan.faults)
        calm = max([before, *(end + RECOVERY for end in faults)])
        if after - calm > most:
            return after - before
    return 0.0


def rates(texts: Sequence[Text], alone: Sequence[Text], plan: Plan) -> Iterator[str]:
    """Yield texts whose drafts made them slower than the promise, over any WINDOW tokens in which
    as many prompts were read: reading one delays others, and drafts may change who opens first.

    alone: the same texts, made by root-only forwards
    """
    for text, other in zip(texts, alone, strict=True):
        for first in range(0, len(text.came) - WINDOW, 8):
            spans = [(one.came[first], one.came[first + WINDOW]) for one in (text, other)]
            took, most = (end - begin for begin, end in spans)
            is_slow = PROMISE * took > most + 2 * plan.forward
            if is_slow and _begun(texts, spans[0]) == _begun(alone, spans[1]):
                yield f"{text} takes {took:.2f} s for {WINDOW} tokens, and alone {most:.2f} s"
                break


def _begun(texts: Sequence[Text], span: tuple[float, float]) -> int:
    """Return how many texts' first tokens came within a span of time."""
    return sum(span[0] < text.came[0] <= span[1] for text in texts if text.came)


def leaks(targets: Sequence[TargetProcess]) -> Iterator[str]:
    """Yield what targets still hold when every client has gone."""
    for target in targets:
        if not target.runs or target.server is None:
            yield f"{target.process.name} does not run at the end"
            continue
        engine, admission = target.engine, target.admission  # the engine's lock may be held
        held = {
            "sessions": len(admission.sessions),
            "rows": engine.model.rows - admission.pool.free,
            **{what: len(held) for what, held in target.process.holds.items()},
        }
        table = target.process.holds["session records"]
        ended = sum(
            sample.value
            for family in target.metrics.registry.restricted_registry([ENDED]).collect()
            for sample in family.samples
        )
        held["sessions whose end was not counted"] = table.added - int(ended)
        if not any(number > 0 for number in held.values()):  # a dear look, once all else is well
            tables = reachable(engine, target.metrics, table)
            held["ended sessions"] = tables["Session"] - DRAFTED * tables["ColocatedDrafter"]
        for what, number in held.items():
            if number > 0:
                yield f"{target.process.name} holds {number} {what} at the end"


def files(folder: Path) -> Iterator[str]:
    """Yield kept files that are not whole."""
    for path in folder.glob("draft-*.json"):
        try:
            read_profile(path)
        except InvalidRequest as error:
            yield f"a kept file is spoilt: {error}"


def logs(records: Sequence[logging.LogRecord], plan: Plan) -> Iterator[str]:
    """Yield log lines with a secret, and errors that no fault explains."""
    kinds = {fault.kind for fault in plan.faults}
    for record in records:
        line = record.getMessage()
        if record.exc_info:
            where = traceback.extract_tb(record.exc_info[2])[-1:]
            line += f" ({record.exc_info[1]!r}, {where})"
        if SECRET in line:
            yield f"a secret in a log line: {line}"
        if record.levelno >= logging.ERROR and not (
            ("keys" in line and {"spoil keys", "failing disk"} & kinds)
            or ("a session failed" in line and (plan.is_hostile or "failing forward" in kinds))
        ):
            yield f"logged: {line}"
