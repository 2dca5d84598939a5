"""What happens to targets, clients, links, clocks and files, at the plan's moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulate.kernel import ticked
from tests.simulate.network import Link
from tests.simulate.plan import TENANTS, Fault
from tests.simulate.targets import TargetProcess, write_file, write_keys

if TYPE_CHECKING:
    from tests.simulate.world import World

SLOWER = 10.0
"""Times as long as before takes a slow forward, or the way over a slow link."""


class Weather:
    """Makes the faults, and ends them.

    happened: when each began and ended, and its kind; a fault that found nobody is left out
    """

    def __init__(self, world: World) -> None:
        self._world, self._left = world, len(world.plan.faults)
        self.happened: list[tuple[float, str]] = []
        self._without: dict[str, int] = dict.fromkeys(TENANTS, 0)
        self._lowered = 0

    @property
    def over(self) -> bool:
        return not self._left

    def rage(self) -> None:
        """Live through the plan's faults, on a thread of its own."""
        kernel, began = self._world.kernel, self._world.kernel.now
        for fault in self._world.plan.faults:
            kernel.sleep(max(began + fault.at - kernel.now, 0.0))
            heal = self._begin(fault)
            kernel.after(fault.seconds, lambda fault=fault, heal=heal: self._heal(fault, heal))  # type: ignore[misc]

    def _begin(self, fault: Fault) -> Callable[[], None] | None:
        """Begin a fault; what ends it."""
        make = getattr(self, "_" + fault.kind.replace(" ", "_").replace("-", "_"))
        heal: Callable[[], None] | None = make(fault)
        if heal is not None:
            self._world.kernel.tell(f"fault: {fault}")
            self.happened.append((self._world.kernel.now, fault.kind))
        return heal

    def _heal(self, fault: Fault, heal: Callable[[], None] | None) -> None:
        self._left -= 1
        if heal is not None:
            heal()
            self._world.kernel.tell(f"healed: {fault}")
            self.happened.append((self._world.kernel.now, fault.kind))

    # Links.

    def _links(self, fault: Fault) -> list[Link]:
        """One link, or all of a target's."""
        links = self._world.network.links
        if not links:
            return []
        return [links[fault.who % len(links)]] if fault.who % 3 else links

    def _cut(self, fault: Fault) -> Callable[[], None] | None:
        pipes = [pipe for link in self._links(fault) for pipe in link.pipes]
        for pipe in pipes:
            pipe.cut()
        return _nothing if pipes else None

    def _half_open(self, fault: Fault) -> Callable[[], None] | None:
        links = self._links(fault)
        for link in links:
            link.mute = True
            for pipe in link.pipes:
                pipe.mute = True

        def heal() -> None:
            for link in links:
                link.mute = False

        return heal if links else None

    def _delay(self, fault: Fault) -> Callable[[], None] | None:
        links = self._links(fault)
        for link in links:
            link.held = max(link.held, self._world.kernel.now + fault.seconds)
        return _nothing if links else None

    def _slow_link(self, fault: Fault) -> Callable[[], None] | None:
        links = self._links(fault)
        for link in links:
            link.factor = SLOWER

        def heal() -> None:
            for link in links:
                link.factor = 1.0

        return heal if links else None

    # Targets.

    def _target(self, fault: Fault) -> TargetProcess | None:
        target = self._world.targets[fault.who % len(self._world.targets)]
        return target if target.runs and not target.process.frozen and target.server else None

    def _kill_target(self, fault: Fault) -> Callable[[], None] | None:
        target = self._target(fault)
        if target is None:
            return None
        target.kill(silent=False)
        return target.start

    def _lose_target(self, fault: Fault) -> Callable[[], None] | None:
        target = self._target(fault)
        if target is None:
            return None
        target.kill(silent=True)
        return target.start

    def _drain_target(self, fault: Fault) -> Callable[[], None] | None:
        return self._stopped(fault, 5.0)

    def _end_target(self, fault: Fault) -> Callable[[], None] | None:
        return self._stopped(fault, None)

    def _stopped(self, fault: Fault, grace: float | None) -> Callable[[], None] | None:
        target, kernel = self._target(fault), self._world.kernel
        if target is None:
            return None
        target.stop(grace)

        def heal() -> None:
            if target.runs:  # it still ends
                kernel.after(0.5, heal)
            else:
                target.start()

        return heal

    def _freeze_target(self, fault: Fault) -> Callable[[], None] | None:
        target = self._target(fault)
        if target is None:
            return None
        process, kernel = target.process, self._world.kernel
        kernel.freeze(process, frozen=True)
        return lambda: kernel.freeze(process, frozen=False)

    def _end_sessions(self, fault: Fault) -> Callable[[], None] | None:
        """As if all leases had run out."""
        target = self._target(fault)
        if target is None or not target.engine.sessions:
            return None
        engine = target.engine

        def end() -> None:
            for session in engine.sessions:
                engine.close(session)

        self._world.kernel.spawn(target.process, "fault", end)
        return _nothing

    def _slow_forwards(self, fault: Fault) -> Callable[[], None] | None:
        target = self._world.targets[fault.who % len(self._world.targets)]
        target.slow = SLOWER

        def heal() -> None:
            target.slow = 1.0

        return heal

    def _failing_forward(self, fault: Fault) -> Callable[[], None] | None:
        target = self._target(fault)
        if target is None:
            return None
        target.model.failing = 1 + fault.who % 3
        return _nothing

    # Clients.

    def _freeze_client(self, fault: Fault) -> Callable[[], None] | None:
        client = self._world.clients[fault.who % len(self._world.clients)]
        process, kernel = client.process, self._world.kernel
        if process.dead or process.frozen:
            return None
        kernel.freeze(process, frozen=True)
        return lambda: kernel.freeze(process, frozen=False)

    def _kill_client(self, fault: Fault) -> Callable[[], None] | None:
        return self._gone_client(fault, silent=False)

    def _lose_client(self, fault: Fault) -> Callable[[], None] | None:
        return self._gone_client(fault, silent=True)

    def _gone_client(self, fault: Fault, *, silent: bool) -> Callable[[], None] | None:
        clients = self._world.clients
        client = clients[fault.who % len(clients)]
        if client.over or len(clients) == 1:
            return None
        client.process.dead = True
        for link in self._world.network.links:
            for pipe in [one for one in link.pipes if one.ends[0].process is client.process]:
                if silent:
                    pipe.mute = True
                else:
                    pipe.cut()
        return _nothing

    # The clock and the keys.

    def _clock_jump(self, fault: Fault) -> Callable[[], None] | None:
        """All machines were asleep; their wall clocks went another way meanwhile."""
        kernel = self._world.kernel
        kernel.now = ticked(kernel.now + fault.seconds)
        kernel.skew += fault.seconds * (fault.who % 7 - 3) * 100
        return _nothing

    def _revoke_key(self, fault: Fault) -> Callable[[], None] | None:
        tenant = TENANTS[fault.who % len(TENANTS)]
        self._without[tenant] += 1
        self._write_keys()

        def heal() -> None:
            self._without[tenant] -= 1
            self._write_keys()

        return heal

    def _lower_limits(self, fault: Fault) -> Callable[[], None] | None:
        self._lowered += 1
        self._write_keys()

        def heal() -> None:
            self._lowered -= 1
            self._write_keys()

        return heal

    def _spoil_keys(self, fault: Fault) -> Callable[[], None] | None:
        """A full disk: the file is written in part."""
        write_file(self._world.keys, '{"keys": [{"na')
        return self._write_keys

    def _write_keys(self) -> None:
        without = frozenset(name for name, times in self._without.items() if times)
        limits = {"sessions": 1, "sequence_length": 60, "tree_nodes": 3} if self._lowered else {}
        write_keys(self._world.keys, without, **limits)


def _nothing() -> None: ...
