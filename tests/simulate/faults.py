"""Faults of targets, clients, links, clocks and files, at the plan's times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulate.kernel import Process, ticked
from tests.simulate.network import Link
from tests.simulate.plan import TENANTS, Fault
from tests.simulate.target_process import TargetProcess, write_keys
from tests.support.hostile import write_file

if TYPE_CHECKING:
    from tests.simulate.world import World

SLOWER = 10.0
"""Times as long as before takes a slow forward, or the way over a slow link."""

CUT_EVERY = 4.0
"""Seconds between cuts of links that are cut again and again."""

Heal = Callable[[], None] | None
"""What ends a fault; None for one that is over at once."""


class NobodyThere(Exception):
    """A fault finds nobody whom it could happen to."""


class Weather:
    """Makes the faults, and ends them.

    happened: when each began and ended, and its kind; a fault that found nobody is left out
    """

    def __init__(self, world: World) -> None:
        self._world, self._left = world, len(world.plan.faults)
        self.happened: list[tuple[float, str]] = []
        self._changes = Counter[str]()  # of the keys: tenants without, and lower limits

    @property
    def over(self) -> bool:
        return not self._left

    def rage(self) -> None:
        """Live through the plan's faults, on a thread of its own."""
        kernel, began = self._world.kernel, self._world.kernel.now
        for fault in self._world.plan.faults:
            kernel.sleep(max(began + fault.at - kernel.now, 0.0))
            try:
                heal: Heal = getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
            except NobodyThere:
                self._left -= 1
            else:
                self._note("fault", fault)
                kernel.after(fault.seconds, partial(self._heal, fault, heal))

    def _heal(self, fault: Fault, heal: Heal) -> None:
        self._left -= 1
        if heal is not None:
            heal()
        self._note("healed", fault)

    def _note(self, what: str, fault: Fault) -> None:
        self._world.kernel.tell(f"{what}: {fault}")
        self.happened.append((self._world.kernel.now, fault.kind))

    # Links.

    def _links(self, fault: Fault) -> list[Link]:
        """One link, or all of them."""
        links = self._world.network.links
        if not links:
            raise NobodyThere
        return [links[fault.who % len(links)]] if fault.who % 3 else links

    def _cut(self, fault: Fault) -> Heal:
        pipes = [pipe for link in self._links(fault) for pipe in link.pipes]
        if not pipes:
            raise NobodyThere
        for pipe in pipes:
            pipe.cut()
        return None

    def _half_open(self, fault: Fault) -> Heal:
        links = self._links(fault)
        for link in links:
            link.mute = True
            for pipe in link.pipes:
                pipe.mute = True

        def heal() -> None:
            for link in links:
                link.mute = False

        return heal

    def _delay(self, fault: Fault) -> Heal:
        for link in self._links(fault):
            link.held = max(link.held, self._world.kernel.now + fault.seconds)
        return None

    def _slow_link(self, fault: Fault) -> Heal:
        links = self._links(fault)
        for link in links:
            link.factor = SLOWER

        def heal() -> None:
            for link in links:
                link.factor = 1.0

        return heal

    # Targets.

    def _target(self, fault: Fault) -> TargetProcess:
        target = self._world.targets[fault.who % len(self._world.targets)]
        if not target.runs or target.process.frozen or target.server is None:
            raise NobodyThere
        return target

    def _kill_target(self, fault: Fault) -> Heal:
        target = self._target(fault)
        self._kill(target.process, silent=False)
        return target.start

    def _lose_target(self, fault: Fault) -> Heal:
        """With its machine, so that nobody is told."""
        target = self._target(fault)
        self._kill(target.process, silent=True)
        self._world.network.silent.add(target.address)
        return target.start

    def _kill(self, process: Process, *, silent: bool) -> None:
        process.dead = True
        for pipe in self._world.network.pipes:
            if process in [end.process for end in pipe.ends]:
                if silent:
                    pipe.mute = True
                else:
                    pipe.cut()

    def _drain_target(self, fault: Fault) -> Heal:
        """Some of them while a forward runs that may end a text."""
        target, kernel = self._target(fault), self._world.kernel
        until = kernel.now + (20.0 if fault.who % 2 else 0.0)
        while kernel.now < until and not any(one.allowed == 1 for one in target.engine.sessions):
            kernel.sleep(self._world.plan.forward / 4)
        return self._stop(self._target(fault), 5.0)

    def _hung_forward(self, fault: Fault) -> Heal:
        """A forward that takes long; meanwhile, some links are cut again and again."""
        target, kernel = self._target(fault), self._world.kernel
        target.model.hangs_until = until = kernel.now + fault.seconds

        def cut() -> None:
            if kernel.now < until:
                for pipe in self._world.network.pipes:
                    pipe.cut()
                kernel.after(CUT_EVERY, cut)

        if fault.who % 2:
            cut()
        return None

    def _end_target(self, fault: Fault) -> Heal:
        return self._stop(self._target(fault), None)

    def _stop(self, target: TargetProcess, grace: float | None) -> Heal:
        stopped = target.process
        target.stop(grace)

        def heal() -> None:
            if not stopped.dead:  # it still ends
                self._world.kernel.after(0.5, heal)
            else:  # another fault may have started it again: then nothing happens
                target.start()

        return heal

    def _end_sessions(self, fault: Fault) -> Heal:
        """As if all leases had run out."""
        target = self._target(fault)
        engine = target.engine

        def end() -> None:
            for session in engine.sessions:
                engine.close(session)

        self._world.kernel.spawn(target.process, "fault", end)
        return None

    def _slow_forwards(self, fault: Fault) -> Heal:
        target = self._world.targets[fault.who % len(self._world.targets)]
        target.slow = SLOWER
        return lambda: setattr(target, "slow", 1.0)

    def _failing_forward(self, fault: Fault) -> Heal:
        self._target(fault).model.failing = 1 + fault.who % 3
        return None

    # Processes.

    def _freeze_target(self, fault: Fault) -> Heal:
        return self._freeze(self._target(fault).process)

    def _freeze_client(self, fault: Fault) -> Heal:
        return self._freeze(self._client(fault))

    def _freeze(self, process: Process) -> Heal:
        if process.frozen:
            raise NobodyThere
        freeze = partial(self._world.kernel.freeze, process)
        freeze(frozen=True)
        return partial(freeze, frozen=False)

    def _client(self, fault: Fault) -> Process:
        clients = self._world.clients
        client = clients[fault.who % len(clients)]
        if client.over:
            raise NobodyThere
        return client.process

    def _kill_client(self, fault: Fault) -> Heal:
        self._kill(self._client(fault), silent=False)
        return None

    def _lose_client(self, fault: Fault) -> Heal:
        self._kill(self._client(fault), silent=True)
        return None

    # The clock, disks and the keys.

    def _clock_jump(self, fault: Fault) -> Heal:
        """All machines were asleep; their wall clocks went another way meanwhile."""
        kernel = self._world.kernel
        kernel.now = ticked(kernel.now + fault.seconds)
        kernel.skew += fault.seconds * (fault.who % 7 - 3) * 100
        return None

    def _failing_disk(self, fault: Fault) -> Heal:
        self._machine(fault).fails_until = self._world.kernel.now + fault.seconds
        return None

    def _full_disk(self, fault: Fault) -> Heal:
        self._machine(fault).full_until = self._world.kernel.now + fault.seconds
        return None

    def _machine(self, fault: Fault) -> Process:
        return self._target(fault).process if fault.who % 2 else self._client(fault)

    def _revoke_key(self, fault: Fault) -> Heal:
        return self._change_keys(TENANTS[fault.who % len(TENANTS)], 1)

    def _lower_limits(self, fault: Fault) -> Heal:
        return self._change_keys("limits", 1)

    def _change_keys(self, what: str, times: int) -> Heal:
        self._changes[what] += times
        self._write_keys()
        return partial(self._change_keys, what, -times)  # type: ignore[return-value]

    def _spoil_keys(self, fault: Fault) -> Heal:
        """A full disk: the file is written in part."""
        write_file(self._world.keys, '{"keys": [{"na')
        return self._write_keys

    def _write_keys(self) -> None:
        """Write the file that is to be in force."""
        without = frozenset(tenant for tenant in TENANTS if self._changes[tenant])
        limits = {"sessions": self._world.plan.limit}
        if self._changes["limits"]:
            limits = {"sessions": 1, "sequence_length": 60, "tree_nodes": 3}
        write_keys(self._world.keys, without, **limits)
        self._world.tap.note_keys(limits["sessions"], without)
