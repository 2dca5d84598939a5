"""Target processes: the real server and engine over a model that can be computed by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from grpc_comm.observability.metrics import Metrics
from grpc_comm.security import SecurityOptions
from grpc_comm.server.server import BackgroundServer, Target
from grpc_comm.transport import Address
from inference.backends import Chosen, Segment
from inference.drafters.growing_proposer import Draft
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.prefix_cache import CacheRow
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from tests.simulate.kernel import Kernel, Process, kernel
from tests.simulate.network import Network
from tests.simulate.plan import MOST_SESSIONS, TENANTS, Plan
from tests.simulate.scripted_drafts import TimedDraft, knowledge
from tests.support.clock import Clock
from tests.support.exact import VOCABULARY, Exact
from tests.support.hostile import keys_file
from tests.support.scripted import END, RULED, scripted_grammars, skilled
from tests.support.wire_fixtures import describe

LONGEST, MOST_NODES = 512, 16
PORT = 7000

KINDS = END + 1
"""Tokens of a target whose tokens are characters: it takes a grammar."""

DRAFTED = 2
"""Sessions that the draft beside a target serves at once. It may remember them a while."""


@cache
def _checked_grammars() -> Grammars:
    """A check is another process, so it happens before a simulation begins."""
    grammars = scripted_grammars()
    assert RULED.grammar is not None
    grammars.check(RULED.grammar)
    return grammars


def grammars_of(kinds: int) -> Grammars | None:
    """Return the grammars of a target that chooses among so many tokens."""
    return _checked_grammars() if kinds == KINDS else None


class Sleeping(Clock):
    """A clock that sleeps when it is moved on: a forward takes simulated time."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    @property
    def now(self) -> float:
        return self._kernel.now

    @now.setter
    def now(self, until: float) -> None:
        self._kernel.sleep(until - self._kernel.now)


class Faulty(Exact):
    """The computable target, whose forwards may fail or hang.

    failing: forwards that are to fail
    hangs_until: when forwards end, at the earliest
    """

    failing, hangs_until = 0, 0.0

    def choose(self, segments: Any) -> list[Chosen]:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("the device failed")
        fiber, clock = kernel().current, self._clock
        assert fiber is not None
        fiber.process.computes_since = clock.now
        try:
            clock.now = max(clock.now, self.hangs_until)
            return super().choose(list[Segment](segments))
        finally:
            fiber.process.computes_since = math.inf


class TargetProcess:
    """A target that can be stopped, killed and started again at its address.

    slow: factor of its forwards' times
    """

    def __init__(self, plan: Plan, kernel: Kernel, network: Network, at: int, keys: Path) -> None:
        self.address = f"127.0.0.{at + 1}:{PORT}"
        self.slow, self.lives = 1.0, 0
        self.server: BackgroundServer | None = None
        self._plan, self._kernel, self._network, self._keys = plan, kernel, network, keys
        self.process = Process(f"target{at}")
        self.process.dead = True

    @property
    def runs(self) -> bool:
        return not self.process.dead

    def start(self) -> None:
        """Start it, unless it runs."""
        if self.runs:
            return
        self.lives += 1
        self._network.silent.discard(self.address)
        self.process = Process(self.process.name.partition("'")[0] + "'" * (self.lives - 1))
        self.server = None
        self._kernel.spawn(self.process, "main", self._serve)

    def _serve(self) -> None:
        plan, clock = self._plan, Sleeping(self._kernel)
        self.model = Faulty(
            plan.rows,
            clock,
            capacity=LONGEST + 64,
            kinds=plan.kinds,
            cost=self._seconds,
        )
        self.model.branches = bool(plan.seed % 8)  # as a target whose rows hold running states
        self.engine = Engine(
            self.model,
            sequence_length=LONGEST,
            max_tree_nodes=MOST_NODES,
            vocabulary=VOCABULARY,
            waiting=plan.waiting,
            drafter=self._drafter(clock) if plan.beside else None,
            grammars=grammars_of(plan.kinds),
            clock=clock,
        )
        security = SecurityOptions(keys_file=self._keys) if plan.keys else SecurityOptions()
        self.metrics = Metrics()
        self._watch_line()
        host, _, port = self.address.rpartition(":")
        target = Target(
            self.engine,
            describe(self.engine),
            Address(host, int(port)),
            security,
            metrics=self.metrics,
            share_prefixes=plan.sharing,
            lease_seconds=plan.lease,
        )
        while self.server is None:
            try:
                self.server = BackgroundServer(target)
            except InvalidRequest:  # its keys file is spoilt, and it is started again
                self._kernel.sleep(1.0)

    def _watch_line(self) -> None:
        """Look at who gets each row that is free."""
        self.admission = admission = self.engine._admission
        take = admission.pool.take

        def watched(tokens: Sequence[int], sharing: str) -> CacheRow | None:
            row, held = take(tokens, sharing), Counter(one.tenant for one in admission.on_rows)
            first = [one.tenant for one in admission.line if one.tokens is tokens]
            line = [one.tenant for one in admission.line]
            if row and first and held[first[0]] > min(held[tenant] for tenant in line):
                self._kernel.crashes.append(f"{first[0]} gets a further row before {line}")
            return row

        admission.pool.take = watched  # type: ignore[method-assign]

    def _drafter(self, clock: Sleeping) -> ColocatedDrafter:
        plan, call = self._plan, self._plan.forward * self._plan.call / 4
        says = skilled(SamplingParams(), plan.kinds, right=70)
        draft = Draft(TimedDraft(says, self._kernel, call, rows=DRAFTED))
        known = partial(knowledge, call, plan.forward)
        return ColocatedDrafter(draft, known, room=64, copies=plan.sharing, clock=clock)

    def _seconds(self, rows: int, nodes: int) -> float:
        plan = self._plan
        return self.slow * plan.forward * (1 + plan.node * (rows * nodes - 1))

    def stop(self, grace: float | None) -> None:
        """End it as a signal does; it is dead when that is done."""
        process, server = self.process, self.server

        def end() -> None:
            assert server is not None
            server.stop(grace)
            process.dead = True

        if self.runs and server is not None:
            self._kernel.spawn(process, "signal", end)


def write_keys(path: Path, without: frozenset[str] = frozenset(), **limits: int) -> None:
    """Write the keys of all tenants but some, replacing the file whole."""
    names = [name for name in TENANTS if name not in without]
    keys_file(path, **{name: {"sessions": MOST_SESSIONS, **limits} for name in names})
