"""Reports events of a request while it runs: candidates sent, tokens received, and statistics.

The chat page and the demo show these events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from threading import Event
from typing import Any, TypeAlias, cast

from inference.loop.decode import TargetSession
from inference.order import Progress
from inference.proposer import NOBODY, Nodes
from inference.times import Times
from outrider.client.client import Client
from outrider.text.completion import PROPOSERS, Completion, Request
from outrider.text.limits import limit_words
from outrider.text.pieces import Piece

MAX_DRAWN = 24
"""Maximum candidates reported per message. The first ones are reported: they are most likely."""

TextEvent: TypeAlias = tuple[str, dict[str, Any]]
"""An event: its name and its data. The field `at` is seconds since the request began."""


class Watcher:
    """Runs one request and reports its events.

    on_event: receives the events, on the threads of the request and of its draft
    """

    def __init__(self, client: Client, on_event: Callable[[TextEvent], None]) -> None:
        self._client, self._on_event, self._start = client, on_event, time.perf_counter()

    def complete(self, request: Request, cancelled: Event, *, alone: bool = False) -> Completion:
        """Run a request as Client.complete() does, and report its events."""

        def show(piece: Piece) -> None:
            self.report("piece", {"text": piece.text, "by": _name(piece.proposer)})

        def on_commit(done: Completion) -> None:
            self.report("figures", _figures(self._client, done))

        return self._client.complete(request, show, cancelled, on_commit, self.watch, alone=alone)

    def report(self, name: str, data: dict[str, Any]) -> None:
        """Report an event with the current time."""
        self._on_event((name, {"at": round(time.perf_counter() - self._start, 6), **data}))

    def watch(self, session: TargetSession) -> TargetSession:
        """Wrap a session, to report its candidates and tokens."""
        watched = WatchedSession(
            session,
            lambda nodes: self.report("nodes", self._nodes(nodes)),
            lambda progress: self.report("tokens", self._tokens(progress, session)),
        )
        return cast(TargetSession, watched)

    def _nodes(self, nodes: Nodes) -> dict[str, Any]:
        """Return the candidates sent: number, parent (-1 is the token at `base`), text, probability
        claimed by the draft, and token id.
        """
        columns = zip(nodes.parents, nodes.tokens, nodes.chances, strict=True)
        drawn = [
            [number, number - back if back else -1, self._text(token), round(chance, 4), token]
            for number, (back, token, chance) in enumerate(islice(columns, MAX_DRAWN), nodes.first)
        ]
        undrawn = len(nodes.tokens) - len(drawn)
        return {"base": nodes.base, "by": _name(nodes.proposer), "nodes": drawn, "more": undrawn}

    def _tokens(self, progress: Progress, session: TargetSession) -> dict[str, Any]:
        """Return the tokens that the target committed, their proposers, and totals of the request.

        Candidates numbered below `known` had arrived when the last forward pass began.
        model_seconds are measured by the target's clock.
        """
        traffic = session.traffic
        return {
            "position": progress.position,
            "ids": list(progress.tokens),
            "texts": [self._text(token) for token in progress.tokens],
            "by": [_name(kind) for kind in progress.proposers],
            "known": progress.known,
            "forwards": traffic.forwards,
            "model_seconds": round(traffic.model_seconds, 6),
            "bytes": [traffic.bytes_up, traffic.bytes_down],
        }

    def _text(self, token: int) -> str:
        return self._client.tokenizer.token_bytes(token).decode(errors="replace")


def ended(client: Client, done: Completion) -> dict[str, Any]:
    """Return the statistics of a finished request, why it ended, what limited its speed, and how
    cost and energy were determined.
    """
    times = Times(dict(client.target.description.times))
    return _figures(client, done) | {
        "reason": done.finish_reason,
        "seed": done.seed,
        "limit": limit_words(done, client.round_trip or 0.0, times),
        "cost": done.cost.record(),
        "energy": done.energy.record(),
    }


def _figures(client: Client, done: Completion) -> dict[str, Any]:
    """Return speed, acceptance, cost, and the time breakdown in seconds."""
    energy = client.budget.energy(done.usage, len(done.token_ids))
    return {
        "tokens": len(done.token_ids),
        "seconds": done.seconds,
        "first": done.time_to_first_token,
        "speed": done.tokens_per_second,
        "acceptance_length": done.acceptance_length,
        "accepted_by": done.accepted_by,
        "draft_calls": done.draft_calls,
        "reused": done.traffic.reused_tokens,
        "usd": client.budget.price(done.usage),
        "joules": energy.value,
        "where": {
            "draft": done.draft_seconds,
            "target": done.traffic.model_seconds + done.traffic.prefill_seconds,
            "queue": done.traffic.queue_seconds,
        },
    }


def _name(kind: int) -> str:
    return "target" if kind == NOBODY else PROPOSERS[kind]


class WatchedSession:
    """A TargetSession (inference/loop/decode.py) that forwards every call to another session.

    on_nodes: receives candidates when they are sent
    on_progress: receives committed tokens when they arrive
    """

    def __init__(
        self,
        session: TargetSession,
        on_nodes: Callable[[Nodes], None],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._session, self._on_nodes, self._on_progress = session, on_nodes, on_progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def propose(self, nodes: Nodes) -> None:
        self._on_nodes(nodes)
        self._session.propose(nodes)

    def receive(self, timeout: float) -> Progress | None:
        progress = self._session.receive(timeout)
        if progress is not None:
            self._on_progress(progress)
        return progress
