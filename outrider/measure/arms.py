"""Arms of a run: ways of making a text, which the run's loop does not tell apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event

from outrider.client.client import Client
from outrider.measure.account import Account
from outrider.measure.figures import AGAIN, BASELINE
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request

Make = Callable[[Request, Event], Completion]
"""Makes a text, until the event is set. Raises the error that ended it."""


@dataclass(frozen=True)
class Arm:
    """A way of making a text."""

    name: str
    make: Make
    alone: Make  # target-only over the same link: computes a prompt before its texts are made
    account: Account


def with_again(arms: Sequence[Arm]) -> list[Arm]:
    """These arms with an A/A pair: target-only once more, beside any others."""
    again = [replace(arm, name=AGAIN) for arm in arms if arm.name == BASELINE and len(arms) > 1]
    return [*arms[:1], *again, *arms[1:]]


def client_arm(name: str, client: Client, account: Account) -> Arm:
    """An arm of a client, with its draft unless it is target-only."""

    def alone(request: Request, cancelled: Event) -> Completion:
        return client.complete(request, silent, cancelled, alone=True).raise_failure()

    def drafted(request: Request, cancelled: Event) -> Completion:
        done = client.complete(request, silent, cancelled).raise_failure()
        if (rows := client.wait()) is not None:
            rows.settle()  # its last call is not to slow the next text
        return done

    return Arm(name, alone if name == BASELINE else drafted, alone, account)
