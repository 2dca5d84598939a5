"""Arms of a run: ways of generating a text, with one interface for the run's loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from inference.cost.billing import PER_MILLION, Billing
from inference.cost.quantity import Figure
from outrider.client.client import Client
from outrider.options.draft_flags import PRESETS
from outrider.text.completion import Completion, Request, silent

BASELINE, AGAIN = "target-only", "target-only again"
"""The arm that all others are compared with, and the same arm once more: an A/A pair, whose
speed-up shows the noise of a run.
"""

FUSED, LOCAL, FUSED_LOCAL = "fused", "target-only local", "fused local"
CHAIN, TREE = "synchronous chain", "synchronous tree"
GROWING, SUFFIX, HYBRID = "growing", "suffix", "hybrid"

ARCHITECTURES = {
    BASELINE: "vanilla",
    LOCAL: "",
    FUSED_LOCAL: "",
    FUSED: "eagle_sd",
    CHAIN: "classic_sd",
    TREE: "tree_sd",
    GROWING: "adaptive",
    SUFFIX: "suffix",
    HYBRID: "hybrid",
}
"""The preset of each architecture; empty where the target runs in this process."""

LOCAL_ARMS = (LOCAL, FUSED_LOCAL)


def command(arm: str) -> str:
    """The end of a sentence about an architecture or preset: its command, if it has one."""
    preset = ARCHITECTURES.get(arm, arm)
    if preset not in PRESETS:
        return ""
    flags = "" if preset == HYBRID else f" --preset {preset}"
    there = ", with outrider fused_target" if preset == "eagle_sd" else ""
    return f": `outrider run{flags}`{there}"


Make = Callable[[Request, Event], Completion]
"""Generates a text, until the event is set. Raises the error that ended it."""


@dataclass(frozen=True)
class Arm:
    """A way of generating a text.

    alone: target-only over the same link: computes a prompt before its texts are generated
    billing: prices, and watts where no meter is read
    whole: this machine's meters read the joules of draft and target together
    """

    name: str
    make: Make
    alone: Make
    billing: Billing
    whole: bool
    emulated: bool = False

    def costs(self, done: Completion, read: Figure) -> dict[str, Figure]:
        """US dollars and joules a million tokens of a text, by their names in its record. Joules
        are never those of one side alone.

        read: joules of this machine while the text was generated
        """
        tokens = len(done.token_ids)
        if self.emulated:
            read = Figure.unavailable("the target is emulated: this machine's joules are not its")
        joules = read.times(1 / tokens)
        if not self.whole or read.value is None:
            drafting = None if read.value is None else read
            joules = self.billing.figures(tokens, done.usage, drafting)["energy_total"]
            if joules.value is None and read.value is None:
                joules = Figure.unavailable(f"{read.source}; {joules.source}")
        return {
            "usd_per_million": done.cost.times(PER_MILLION / tokens),
            "joules_per_million": joules.times(PER_MILLION),
        }


def client_arm(name: str, client: Client) -> Arm:
    """An arm of a client, with its draft unless it is target-only."""

    def alone(request: Request, cancelled: Event) -> Completion:
        return client.complete(request, silent, cancelled, alone=True).raise_failure()

    def drafted(request: Request, cancelled: Event) -> Completion:
        done = client.complete(request, silent, cancelled).raise_failure()
        if (rows := client.wait()) is not None:
            rows.settle()  # a running call would slow the next text
        return done

    return Arm(
        name,
        alone if name == BASELINE else drafted,
        alone,
        client.budget.billing,
        client.shares_device,
        client.target.description.emulated,
    )
