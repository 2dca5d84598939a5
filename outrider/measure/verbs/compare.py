"""`outrider compare`: measures all architectures in turn on each prompt."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from threading import Event

from inference.cost.billing import Billing, Figure
from inference.engine.sessions.local_session import LocalSession
from inference.loop.draft_thread import inline
from inference.text.tokenizer import Tokenizer
from outrider.client.client import Client
from outrider.measure.arms import FUSED_LOCAL, Arm
from outrider.measure.verbs import bench
from outrider.measure.verbs.options import CompareOptions
from outrider.target.colocated_draft import with_draft
from outrider.target.target import load_served
from outrider.text.completion import Completion, Request, complete, silent


def run(options: CompareOptions) -> int:
    """Compare the architectures and publish the report. Returns 0."""
    local = list[Arm]()

    def beside(client: Client, arms: list[Arm]) -> list[Arm]:
        if not local:  # loaded once, for all links
            local.extend(local_arms(options, client.tokenizer))
        return [*arms, *local]

    return bench.run(options, beside) if options.in_process else bench.run(options)


def local_arms(options: CompareOptions, tokenizer: Tokenizer) -> list[Arm]:
    """Return arms with the target in this process, alone or with a draft on the same device."""
    role = options.local_role()
    engine = load_served(role, partial(with_draft, role)).engine

    def make(request: Request, cut: Event, *, colocated: bool) -> Completion:
        order, session = request.order(colocated=colocated), LocalSession(engine)
        done = complete(request, session, inline(), tokenizer, silent, cut, order=order)
        return replace(done, cost=Figure.unavailable("nothing is rented")).raise_failure()

    alone = partial(make, colocated=False)
    return [
        Arm(name, partial(make, colocated=name == FUSED_LOCAL), alone, Billing(), joint=True)
        for name in options.in_process
    ]
