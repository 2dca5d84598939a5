"""Makes a failing plan smaller: fewer faults, clients and texts that still fail alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulate.plan import Plan
from tests.simulate.world import run

MOST_TRIES = 80


def shrink(plan: Plan, failing: Callable[[Plan], bool] | None = None) -> Plan:
    """Return the smallest plan found that fails still. failing: whether a plan does"""
    fails = failing or (lambda smaller: bool(run(smaller).failures))
    left, smaller = MOST_TRIES, True
    while smaller and left:
        smaller = False
        for other in _smaller(plan):
            left -= 1
            if fails(other):
                plan, smaller = other, True
                break
            if not left:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, the greatest steps first."""
    faults, clients = plan.faults, plan.clients
    for size in _halves(len(faults)):
        for at in range(0, len(faults), size):
            yield replace(plan, faults=faults[:at] + faults[at + size :])
    for size in _halves(len(clients)):
        for at in range(0, len(clients), size):
            if size < len(clients):
                yield replace(plan, clients=clients[:at] + clients[at + size :])
    for at, client in enumerate(clients):
        for text in range(len(client.texts) if len(client.texts) > 1 else 0):
            fewer = replace(client, texts=client.texts[:text] + client.texts[text + 1 :])
            yield replace(plan, clients=(*clients[:at], fewer, *clients[at + 1 :]))
    if plan.replicas > 1:
        yield replace(plan, replicas=plan.replicas - 1)
    if plan.yields:
        yield replace(plan, yields=0.0)


def _halves(length: int) -> Iterator[int]:
    while length:
        yield length
        length //= 2
