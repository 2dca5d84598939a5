"""The architectures that are compared: a row each in ARCHITECTURES. A new one joins by adding its
row.

An architecture with a setting is an Arm. It makes a Completion of a request; synchronous arms
and target-only have a closed form that predicts their time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

from grpc_comm.client.connection import Connection
from inference.drafters.tree_policies import BestFirst, Chain, Policy
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest
from inference.order import Pace
from inference.text import Tokenizer
from outrider.comparison.prediction import Time, made_across, made_at_the_target
from outrider.completion import Completion, Request, complete
from outrider.drafting import SPEED_ALONE, GrowingPool, rounds
from outrider.report import silent

if TYPE_CHECKING:
    from inference.backends import Model
    from inference.engine.engine import Engine

BASELINE, LOCAL = "target-only", "target-only local"
FUSED, FUSED_LOCAL = "fused", "fused local"
CHAIN, TREE, GROWING = "synchronous chain", "synchronous tree", "growing"

Complete = Callable[[Request], Completion]


@dataclass(frozen=True)
class Bench:
    """What arms are made of.

    target: over the link in question.  draft: with room for the trees of all settings; draft_times:
    seconds of a call of it by width.  local: the target's model in this process with a draft beside
    it, where it was asked for.
    """

    target: Connection
    tokenizer: Tokenizer
    draft: Model
    draft_times: dict[int, float]
    chains: Sequence[Policy]
    trees: Sequence[Policy]
    local: Engine | None


@dataclass(frozen=True)
class Architecture:
    """One row. settings: those that the sweep tries; none where this bench cannot run it.
    time: the closed form; None where there is none.  drafts_here: on the client's machine.
    """

    name: str
    settings: Callable[[Bench], Sequence[Policy | None]]
    complete: Callable[[Bench, Policy | None], Complete]
    time: Time | None
    drafts_here: bool = False

    @property
    def crosses(self) -> bool:
        """Each of its rounds waits for the network."""
        return self.time is made_across


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
    """A setting as a user writes it: 4 is a chain, 16x6 a tree of 16 nodes and depth 6; empty
    where none is known.
    """
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


def _made(bench: Bench, complete_one: Complete) -> Complete:
    """The same, with the target's device in the record."""
    device = bench.target.description.device
    return lambda request: replace(complete_one(request), device=device)


def _alone(bench: Bench, policy: Policy | None) -> Complete:
    return _made(
        bench,
        lambda request: complete(
            request, bench.target.session(), [], bench.tokenizer, silent, Event()
        ),
    )


def _beside(bench: Bench, policy: Policy | None) -> Complete:
    """The draft beside the target proposes, or the target's graphs hold one."""
    return _made(
        bench,
        lambda request: complete(
            request,
            bench.target.session(),
            [],
            bench.tokenizer,
            silent,
            Event(),
            order=request.order(beside=True),
        ),
    )


def _here(bench: Bench, *, beside: bool) -> Complete:
    """The target in this process, alone or with a draft beside it."""

    def complete_one(request: Request) -> Completion:
        assert bench.local is not None
        session, order = LocalSession(bench.local), request.order(beside=beside)
        return complete(request, session, [], bench.tokenizer, silent, Event(), order=order)

    return complete_one


def _in_rounds(bench: Bench, policy: Policy | None) -> Complete:
    """The target waits for a whole tree."""
    assert policy is not None
    rows = rounds(bench.draft, policy, bench.target.description.max_tree_nodes - 1)

    def complete_one(request: Request) -> Completion:
        with rows.proposer() as proposer:
            return complete(
                request,
                bench.target.session(),
                [proposer],
                bench.tokenizer,
                silent,
                Event(),
                order=request.order(Pace.WAIT),
            )

    return _made(bench, complete_one)


def _growing(bench: Bench, policy: Policy | None) -> Complete:
    """As a user gets it who asks for nothing: neither waits; what it learns in one text serves the
    next.
    """
    pool = GrowingPool(bench.draft, bench.draft_times, bench.target, SPEED_ALONE, None)

    def complete_one(request: Request) -> Completion:
        with pool.proposer() as proposer:
            return complete(
                request, bench.target.session(), [proposer], bench.tokenizer, silent, Event()
            )

    return _made(bench, complete_one)


def _once(bench: Bench) -> Sequence[Policy | None]:
    """There is nothing to set."""
    return [None]


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(BASELINE, _once, _alone, made_at_the_target),
    Architecture(
        LOCAL,
        lambda bench: [None] if bench.local else [],
        lambda bench, policy: _here(bench, beside=False),
        made_at_the_target,
    ),
    Architecture(
        FUSED_LOCAL,
        lambda bench: [None] if bench.local else [],
        lambda bench, policy: _here(bench, beside=True),
        None,
    ),
    Architecture(
        FUSED,
        lambda bench: [None] if bench.target.description.draft_model else [],
        _beside,
        None,
    ),
    Architecture(CHAIN, lambda bench: bench.chains, _in_rounds, made_across, drafts_here=True),
    Architecture(TREE, lambda bench: bench.trees, _in_rounds, made_across, drafts_here=True),
    Architecture(GROWING, _once, _growing, None, drafts_here=True),
)
