"""Arms of a run: ways of generating text, with a common interface for the measurement loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event

from inference.cost.billing import PER_MILLION, Billing, Figure
from outrider.client.client import Client
from outrider.options.draft_flags import PRESETS
from outrider.text.completion import Completion, Request, silent

BASELINE, AGAIN = "target-only", "target-only again"
"""The arm that all others are compared with, and a second copy of that arm: the speed-up of one
over the other (an A/A test) shows the noise of a run.
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
"""The preset of each architecture; empty if the target runs in this process."""

LOCAL_ARMS = (LOCAL, FUSED_LOCAL)


def command(arm: str) -> str:
    """Return the command of an architecture or preset as the end of a sentence; empty if none."""
    preset = ARCHITECTURES.get(arm, arm)
    if preset not in PRESETS:
        return ""
    flags = "" if preset == HYBRID else f" --preset {preset}"
    server = ", with outrider fused_target" if preset == "eagle_sd" else ""
    return f": `outrider run{flags}`{server}"


Make = Callable[[Request, Event], Completion]
"""Generates an output, cut short if the event is set meanwhile. Raises the error on failure."""


@dataclass(frozen=True)
class Arm:
    """A way of generating text.

    alone: generates target-only over the same link, to warm the prompt cache before each output
    billing: prices, and watts for devices without a meter
    joint: draft and target both run on this machine, whose meters count their energy together
    """

    name: str
    make: Make
    alone: Make
    billing: Billing
    joint: bool
    emulated: bool = False

    def costs(self, done: Completion, reading: Figure) -> dict[str, Figure]:
        """Return US dollars and joules per million tokens of an output, by their names in its
        record. Joules always include both sides.

        reading: joules of this machine during generation
        """
        tokens = len(done.token_ids)
        if self.emulated:
            reading = Figure.unavailable(
                "the target is emulated: this machine's joules are not its"
            )
        joules = reading.times(1 / tokens)
        if not self.joint or reading.value is None:
            drafting = None if reading.value is None else reading
            joules = self.billing.figures(tokens, done.usage, drafting)["energy_total"]
            if joules.value is None and reading.value is None:
                joules = Figure.unavailable(f"{reading.source}; {joules.source}")
        return {
            "usd_per_million": done.cost.times(PER_MILLION / tokens),
            "joules_per_million": joules.times(PER_MILLION),
        }


def client_arm(name: str, client: Client) -> Arm:
    """Return an arm that generates with a client, and with its draft unless named target-only."""

    def alone(request: Request, cancelled: Event) -> Completion:
        return client.complete(request, silent, cancelled, alone=True).raise_failure()

    def drafted(request: Request, cancelled: Event) -> Completion:
        done = client.complete(request, silent, cancelled).raise_failure()
        if (rows := client.wait()) is not None:
            rows.settle()  # a forward pass still running would slow the next output
        return done

    return Arm(
        name,
        alone if name == BASELINE else drafted,
        alone,
        client.budget.billing,
        client.shares_device,
        client.target.description.emulated,
    )
