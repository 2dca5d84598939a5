"""The architectures that are compared, one row each in ARCHITECTURES. To add one, add its row.

An architecture in one setting is an Arm of a run. All share one loaded draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from grpc_comm.client.connection import Connection
from inference.decode import TargetSession
from inference.draft_thread import inline, on_thread
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import BestFirst, Chain, Policy
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest
from inference.order import Pace
from inference.text import Tokenizer
from inference.times import Table
from outrider.client.pools import AnyRows, GrowingRows, Pair, rounds
from outrider.measure.account import Account
from outrider.measure.arms import Arm, Make
from outrider.measure.figures import BASELINE
from outrider.money.goal import Goal
from outrider.terminal.live_text import silent
from outrider.text.completion import Completion, Request, complete

if TYPE_CHECKING:
    from inference.backends import Model
    from inference.engine.engine import Engine

LOCAL = "target-only local"
FUSED, FUSED_LOCAL = "fused", "fused local"
CHAIN, TREE = "synchronous chain", "synchronous tree"
GROWING, SUFFIX, HYBRID = "growing", "suffix", "hybrid"


class Setting(NamedTuple):
    """A setting of an architecture: the trees of synchronous rounds, or a position of the knob
    --cs.
    """

    policy: Policy | None = None
    goal: Goal | None = None

    @property
    def label(self) -> str:
        """The setting as a user writes it: 4 is a chain, 16x6 a tree of 16 nodes and depth 6. Empty
        where nothing is set.
        """
        if isinstance(self.policy, Chain):
            return str(self.policy.length)
        if isinstance(self.policy, BestFirst):
            return f"{self.policy.nodes}x{self.policy.depth}"
        return "" if self.goal is None else f"--cs {self.knob:g}"

    @property
    def flags(self) -> str:
        """The flags of `outrider run` for this setting, each behind a space."""
        if isinstance(self.policy, Chain):
            return f" --gamma {self.policy.length}"
        if isinstance(self.policy, BestFirst):
            return f" --tree_nodes {self.policy.nodes} --tree_depth {self.policy.depth}"
        return f" {self.label}" if self.label else ""

    @property
    def knob(self) -> float | None:
        """The position of the knob: 0 is speed alone, 100 cost alone."""
        return None if self.goal is None else 100 * self.goal.weight


@dataclass(frozen=True)
class Bench:
    """Parts of arms: a target, a draft and settings."""

    target: Connection  # over the link in question
    tokenizer: Tokenizer
    draft: Model  # with room for the trees of all settings
    draft_times: Table  # seconds of a call of the draft
    chains: Sequence[Policy]
    trees: Sequence[Policy]
    positions: Sequence[Goal]  # positions of the knob --cs; empty: none is asked for
    local: Engine | None  # the target's model in this process, where it was asked for
    account: Account


@dataclass(frozen=True)
class Architecture:
    """An architecture: one row of ARCHITECTURES."""

    name: str
    settings: Callable[[Bench], Sequence[Setting]]  # none where this bench cannot run it
    make: Callable[[Bench, Setting], Make]
    drafts_here: bool = False  # on the client's machine
    on_this_machine: bool = False  # the target runs on the client's machine, too
    presets: tuple[str, ...] = ()  # rows of outrider/options/draft_flags.py that it measures

    @property
    def steered(self) -> bool:
        """Whether it can be run at positions of the knob --cs."""
        return self.settings is _positions

    def choices(self, bench: Bench) -> list[Choice]:
        """This architecture in each setting that the bench can run."""
        return [Choice(self, setting) for setting in self.settings(bench)]


class Choice(NamedTuple):
    """An architecture in one setting."""

    architecture: Architecture
    setting: Setting

    @property
    def name(self) -> str:
        """The architecture's name, with the setting."""
        return f"{self.architecture.name} {self.setting.label}".strip()

    @property
    def command(self) -> str:
        """The command by which a user decodes in this way."""
        name, presets = self.architecture.name, self.architecture.presets
        if self.architecture.on_this_machine:
            return "none: the target runs in the process of the comparison"
        if name == FUSED:
            return "outrider run --draft beside, with outrider fused_target"
        preset = "" if name == HYBRID else f" --preset {presets[0]}"
        return f"outrider run{preset}{self.setting.flags}"

    def arm(self, bench: Bench) -> Arm:
        """The arm of a run that decodes in this way."""
        here, make = self.architecture.on_this_machine, self.architecture.make(bench, self.setting)
        alone = _here(bench, colocated=False) if here else _across(bench)
        return Arm(self.name, make, alone, bench.account.at_home() if here else bench.account)

    def record(self) -> dict[str, object]:
        """The choice as plain data for JSON."""
        return {
            "architecture": self.architecture.name,
            "setting": self.setting.label,
            "cs": self.setting.knob,
            "command": self.command,
        }


def read_setting(text: str) -> Policy:
    """The policy that a Setting.label stands for. Raises InvalidRequest for anything else."""
    nodes, tree, depth = text.strip().partition("x")
    try:
        return BestFirst(int(nodes), int(depth)) if tree else Chain(int(nodes))
    except ValueError as error:
        raise InvalidRequest(
            f"{text!r} is neither a chain, such as 4, nor a tree, such as 16x6"
        ) from error


def _with_target(
    bench: Bench,
    open_session: Callable[[], TargetSession],
    rows: AnyRows | None = None,
    pace: Pace = Pace.GO_ON,
    *,
    colocated: bool = False,
) -> Make:
    """Make texts in sessions of a target, with these rows' proposers drafting here."""

    def make(request: Request, cut: Event) -> Completion:
        order, session = request.order(pace, colocated=colocated), open_session()
        drafter = on_thread(rows.lent) if rows else inline()
        done = complete(request, session, drafter, bench.tokenizer, silent, cut, order=order)
        if rows:
            rows.settle()  # its last call is not to slow down the next arm
        return done.raise_failure()

    return make


def _across(
    bench: Bench, rows: AnyRows | None = None, pace: Pace = Pace.GO_ON, *, colocated: bool = False
) -> Make:
    """Make texts over the link. The record names the target's device."""
    make, device = (
        _with_target(bench, bench.target.session, rows, pace, colocated=colocated),
        bench.target.description.device,
    )
    return lambda request, cut: replace(make(request, cut), device=device)


def _here(bench: Bench, *, colocated: bool) -> Make:
    """Make texts with the target in this process, alone or with a draft beside it."""
    assert bench.local is not None
    return _with_target(bench, partial(LocalSession, bench.local), colocated=colocated)


def _in_rounds(bench: Bench, setting: Setting) -> Make:
    """Make texts in synchronous rounds: the target waits for a whole tree."""
    assert setting.policy is not None
    room = bench.target.description.max_tree_nodes - 1
    return _across(bench, rounds(Draft(bench.draft), setting.policy, room), Pace.WAIT)


def _growing(bench: Bench, setting: Setting, *, model: bool = True, copies: bool = True) -> Make:
    """Make texts while neither side waits. model, copies: what drafts"""
    pair = Pair(bench.target, bench.draft_times if model else {}, None)
    sources = [CopySource() if copies else None for _ in range(bench.draft.rows)]
    draft = Draft(bench.draft if model else None)
    return _across(bench, GrowingRows(draft, pair, setting.goal or Goal(), sources))


def _positions(bench: Bench) -> list[Setting]:
    """The positions of the knob that are asked for, else the one empty setting."""
    return [Setting(goal=goal) for goal in bench.positions] or _once(bench)


def _once(bench: Bench) -> list[Setting]:
    """The one empty setting of an architecture without settings."""
    return [Setting()]


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture(BASELINE, _once, lambda bench, _: _across(bench), presets=("vanilla",)),
    Architecture(
        LOCAL, _once, lambda bench, _: _here(bench, colocated=False), on_this_machine=True
    ),
    Architecture(
        FUSED_LOCAL, _once, lambda bench, _: _here(bench, colocated=True), on_this_machine=True
    ),
    Architecture(
        FUSED,
        lambda bench: [Setting()] if bench.target.description.draft_model else [],
        lambda bench, _: _across(bench, colocated=True),
        presets=("eagle_sd",),
    ),
    Architecture(
        CHAIN,
        lambda bench: [Setting(policy) for policy in bench.chains],
        _in_rounds,
        drafts_here=True,
        presets=("classic_sd",),
    ),
    Architecture(
        TREE,
        lambda bench: [Setting(policy) for policy in bench.trees],
        _in_rounds,
        drafts_here=True,
        presets=("tree_sd",),
    ),
    Architecture(
        GROWING,
        _positions,
        partial(_growing, copies=False),
        drafts_here=True,
        presets=("adaptive", "subspec_sd"),
    ),
    Architecture(
        SUFFIX, _positions, partial(_growing, model=False), drafts_here=True, presets=("suffix",)
    ),
    Architecture(HYBRID, _positions, _growing, drafts_here=True, presets=("hybrid",)),
)
