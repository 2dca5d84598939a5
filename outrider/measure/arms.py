"""Arms of a run: ways of generating a text, with one interface for the run's loop.

An architecture of `outrider compare` is a preset in each requested setting. Two run the target in
this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

from inference.cost.billing import PER_MILLION, Billing
from inference.cost.quantity import Figure
from inference.draft_thread import inline
from inference.errors import InvalidRequest
from outrider.client.client import Client
from outrider.text.completion import Completion, Request, complete, silent

if TYPE_CHECKING:
    from inference.text import Tokenizer
    from outrider.options.roles import FusedTargetRole

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
STEERED = (GROWING, SUFFIX, HYBRID)
"""Architectures that --cs steers."""

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


def with_again(arms: Sequence[Arm]) -> list[Arm]:
    """These arms with an A/A pair: target-only once more, beside any others."""
    again = [replace(arm, name=AGAIN) for arm in arms if arm.name == BASELINE and len(arms) > 1]
    return [*arms[:1], *again, *arms[1:]]


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


class Choice(NamedTuple):
    """An architecture in one setting.

    label: the setting as a user writes it, such as 4, 16x6 or --cs 50; empty for none
    flags: of a client, beside those of the pair
    """

    architecture: str
    label: str
    flags: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The architecture's name, with the setting."""
        return f"{self.architecture} {self.label}".strip()

    @property
    def preset(self) -> str:
        """The preset of the architecture; empty where the target runs in this process."""
        return ARCHITECTURES[self.architecture]

    @property
    def command(self) -> str:
        """The command to decode in this way."""
        if not self.preset:
            return "none: the target runs in the process of the comparison"
        if self.architecture == FUSED:
            return "outrider run --draft beside, with outrider fused_target"
        words = [] if self.architecture == HYBRID else ["--preset", self.preset]
        for name in ("gamma", "tree_nodes", "tree_depth", "cs"):
            if self.label and name in self.flags:
                words += [f"--{name}", str(self.flags[name])]
        return " ".join(["outrider run", *words])

    def record(self) -> dict[str, object]:
        """The choice as plain data for JSON."""
        return {**self._asdict(), "command": self.command}


def sizes(text: str) -> dict[str, int]:
    """The flags of synchronous rounds of this size: 4 is a chain, 16x6 a tree of 16 nodes and depth
    6. Raises InvalidRequest for anything else.
    """
    nodes, tree, depth = text.strip().partition("x")
    try:
        return (
            {"tree_nodes": int(nodes), "tree_depth": int(depth)} if tree else {"gamma": int(nodes)}
        )
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r} is neither a chain, such as 4, nor a tree, such as 16x6"
        ) from error


def local_arms(names: Sequence[str], role: FusedTargetRole, tokenizer: Tokenizer) -> list[Arm]:
    """Arms of LOCAL_ARMS: the target in this process, alone or with a draft beside it."""
    from inference.engine.local_session import LocalSession
    from outrider.target.colocated_draft import with_draft
    from outrider.target.target import load_served

    engine = load_served(role, partial(with_draft, role)).engine

    def make(request: Request, cut: Event, *, colocated: bool) -> Completion:
        order, session = request.order(colocated=colocated), LocalSession(engine)
        done = complete(request, session, inline(), tokenizer, silent, cut, order=order)
        return replace(done, cost=Figure.unavailable("nothing is rented")).raise_failure()

    alone = partial(make, colocated=False)
    return [
        Arm(name, partial(make, colocated=name == FUSED_LOCAL), alone, Billing(), whole=True)
        for name in names
    ]
