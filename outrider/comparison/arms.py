"""The architectures that are compared: a row each in ARCHITECTURES. A new one joins by adding its row.

An architecture with a setting is an Arm. It makes a Completion of a request, and has the closed form that predicts its time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

from grpc_comm.client import Connection
from inference.errors import InvalidRequest
from inference.policy import BestFirst, Chain, Policy
from inference.text import Tokenizer
from outrider.comparison.prediction import Time, made_across, made_at_the_target
from outrider.completion import (
    Completion,
    Request,
    made_there,
    speculate,
    speculate_adaptive,
    target_only,
)
from outrider.report import silent

if TYPE_CHECKING:
    from inference.backends import Model
    from inference.engine import Engine

BASELINE = "target-only"
FUSED = "fused"
LOCAL = "target-only local"

Complete = Callable[[Request], Completion]


@dataclass(frozen=True)
class Bench:
    """What arms are made of.

    target: over the link in question.  draft: with room for the trees of all settings; draft_times: seconds of a call of it by width.
    fused: settings that the draft beside the target is asked for.  local: the target's model in this process, where it was asked for.
    """

    target: Connection
    tokenizer: Tokenizer
    draft: Model
    draft_times: dict[int, float]
    chains: Sequence[Policy]
    trees: Sequence[Policy]
    fused: Sequence[Policy]
    local: Engine | None


@dataclass(frozen=True)
class Architecture:
    """One row. settings: those that the sweep tries; none where this bench cannot run it.  crosses: each round waits for the network."""

    name: str
    settings: Callable[[Bench], Sequence[Policy | None]]
    complete: Callable[[Bench, Policy | None], Complete]
    time: Time
    crosses: bool


@dataclass(frozen=True)
class Arm:
    """An architecture in one setting, ready to run."""

    architecture: Architecture
    policy: Policy | None
    complete: Complete

    @property
    def name(self) -> str:
        return self.architecture.name

    @property
    def setting(self) -> str:
        return label(self.policy)


def arms_of(architecture: Architecture, bench: Bench) -> list[Arm]:
    """One for each setting."""
    return [
        Arm(architecture, policy, architecture.complete(bench, policy))
        for policy in architecture.settings(bench)
    ]


def label(policy: Policy | None) -> str:
    """A setting as a user writes it: 4 is a chain, 16x6 a tree of 16 nodes and depth 6; empty where none is known."""
    if isinstance(policy, Chain):
        return str(policy.length)
    return f"{policy.nodes}x{policy.depth}" if isinstance(policy, BestFirst) else ""


def read_setting(text: str) -> Policy:
    """What label() wrote; raises InvalidRequest for anything else."""
    nodes, tree, depth = text.strip().partition("x")
    try:
        return BestFirst(int(nodes), int(depth)) if tree else Chain(int(nodes))
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r} is neither a chain, such as 4, nor a tree, such as 16x6"
        ) from error


def setting_flags(policy: Policy) -> list[str]:
    """The flags of main.py for it."""
    if isinstance(policy, Chain):
        return ["--gamma", str(policy.length)]
    assert isinstance(policy, BestFirst)
    return ["--tree_nodes", str(policy.nodes), "--tree_depth", str(policy.depth)]


def _there(bench: Bench, policy: Policy | None) -> Complete:
    """Made at the target, with its own draft where there is a policy for it."""

    def complete(request: Request) -> Completion:
        done = made_there(
            request,
            bench.target,
            policy is not None,
            bench.tokenizer,
            silent,
            Event(),
            policy=policy,
        )
        return replace(done, device=bench.target.description.device)

    return complete


def _local(bench: Bench, policy: Policy | None) -> Complete:
    from inference.local import LocalVerifier

    def complete(request: Request) -> Completion:
        assert bench.local is not None
        return target_only(request, LocalVerifier(bench.local), bench.tokenizer, silent, Event())

    return complete


def _distributed(bench: Bench, policy: Policy | None) -> Complete:
    from inference.drafters.pool import DraftPool

    assert policy is not None
    pool, device = DraftPool(bench.draft, policy), bench.target.description.device

    def complete(request: Request) -> Completion:
        with pool.drafter() as drafter:
            return replace(
                speculate(
                    request, drafter, bench.target.verifier(), bench.tokenizer, silent, Event()
                ),
                device=device,
            )

    return complete


def _adaptive(bench: Bench, policy: Policy | None) -> Complete:
    """As a user gets it who asks for nothing: trees and bets chosen as it goes; what it learns in one text serves the next."""
    from outrider.adaptive import SPEED_HERE, AdaptivePool

    pool, device = (
        AdaptivePool(bench.draft, bench.draft_times, bench.target, SPEED_HERE, None),
        bench.target.description.device,
    )

    def complete(request: Request) -> Completion:
        with pool.drafter() as (drafter, navigator):
            done = speculate_adaptive(
                request,
                drafter,
                bench.target.verifier(),
                navigator,
                bench.tokenizer,
                silent,
                Event(),
            )
            return replace(done, device=device)

    return complete


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(BASELINE, lambda bench: [None], _there, made_at_the_target, crosses=False),
    Architecture(
        LOCAL,
        lambda bench: [None] if bench.local else [],
        _local,
        made_at_the_target,
        crosses=False,
    ),
    Architecture(
        FUSED,
        lambda bench: bench.fused if bench.target.description.draft_model else [],
        _there,
        made_at_the_target,
        crosses=False,
    ),
    Architecture(
        "distributed chain", lambda bench: bench.chains, _distributed, made_across, crosses=True
    ),
    Architecture(
        "distributed tree", lambda bench: bench.trees, _distributed, made_across, crosses=True
    ),
    Architecture("adaptive", lambda bench: [None], _adaptive, made_across, crosses=True),
)
