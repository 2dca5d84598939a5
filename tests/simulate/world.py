"""A run of a plan, from its first to its last event, and its results."""

from __future__ import annotations

import gc
import logging.handlers
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.simulate import checks
from tests.simulate.client_process import Client, Text
from tests.simulate.faults import Weather
from tests.simulate.kernel import Kernel, Process, Stuck
from tests.simulate.network import Network
from tests.simulate.plan import TENANTS, Plan
from tests.simulate.seam import installed
from tests.simulate.target_process import TargetProcess, grammars_of, write_keys
from tests.simulate.wiretap import Wiretap
from tests.support.hostile import token_of, write_file

DEADLINE = 3_000.0
"""Seconds after which a client that still waits hangs."""

POLITE_SECONDS = 4.0
"""For a target to let go what its clients have closed."""

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A directory on no disk: files of a simulation are written thousands of times."""

SETTLE_SECONDS = 90.0
"""For threads to end when all clients have."""


@dataclass
class Result:
    """failures: what was wrong, a line each.  seconds: of simulated time"""

    plan: Plan
    failures: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    seconds: float = 0.0
    happened: list[tuple[float, str]] = field(default_factory=list)


class World:
    """Targets, clients and weather on one kernel."""

    def __init__(
        self, plan: Plan, kernel: Kernel, network: Network, folder: Path, tap: Wiretap
    ) -> None:
        self.plan, self.kernel, self.network, self.tap = plan, kernel, network, tap
        self.keys = folder / "keys.json"
        write_keys(self.keys, sessions=plan.limit)
        for tenant in TENANTS:
            write_file(folder / tenant, token_of(tenant))
        self.targets = [
            TargetProcess(plan, kernel, network, at, self.keys) for at in range(plan.replicas)
        ]
        addresses = [one.address for one in self.targets]
        network.names["fleet"] = list(addresses)
        self.clients = [Client(one, plan, network, addresses, folder) for one in plan.clients]
        self.weather = Weather(self)

    def live(self, result: Result) -> None:
        """Let everything happen; note what is wrong."""
        kernel, control = self.kernel, Process("control")
        for target in self.targets:
            target.start()
        for client in self.clients:
            client.start()
        kernel.spawn(control, "weather", self.weather.rage)
        result.texts = [text for client in self.clients for text in client.texts]
        try:
            end = kernel.now + DEADLINE
            kernel.run(lambda: self.weather.over and all(one.over for one in self.clients), end)
            self._settle(result)
        except Stuck as stuck:
            hanging = [str(text) for text in result.texts if not text.outcome]
            result.failures.append(f"{stuck}; texts without an end: {hanging}")

    def _settle(self, result: Result) -> None:
        """Wait until leases are over; then nothing may be left, and targets end in peace."""
        kernel = self.kernel
        if not (self.plan.faults or self.plan.is_hostile):  # clients said that they go
            self._wait(POLITE_SECONDS)
            result.failures += checks.leaks(self.targets)
        end = kernel.now + self.plan.lease * 1.25 + 35.0
        left = [*checks.leaks(self.targets)]
        while left and (kernel.now < end or self._computes_since(end)):
            self._wait(2.0)
            left = [*checks.leaks(self.targets)]
        result.failures += left
        for target in self.targets:
            target.stop(1.0)
        until = kernel.now + SETTLE_SECONDS
        kernel.run(lambda: not kernel.waiting() or kernel.now >= until, until + 60)
        result.failures += [f"a thread never ends: {name}" for name in kernel.waiting()]

    def _computes_since(self, moment: float) -> bool:
        """Whether a forward pass is under way that began before a moment: it holds its rows."""
        return any(target.process.computes_since < moment for target in self.targets)

    def _wait(self, seconds: float) -> None:
        until = self.kernel.now + seconds
        self.kernel.run(lambda: self.kernel.now >= until, until + 60)


def run(plan: Plan) -> Result:
    """Run a plan; one whose rates are compared, twice."""
    grammars_of(plan.kinds)
    result = _run(plan)
    if plan.steady and not (plan.faults or result.failures):
        alone = _run(replace(plan, clients=tuple(replace(one, draft="") for one in plan.clients)))
        result.failures += checks.rates(result.texts, alone.texts, plan)
    return result


def _run(plan: Plan) -> Result:
    gc.disable()
    kernel = Kernel(plan.seed, yields=plan.yields)
    network = Network(kernel, plan.way, plan.jitter)
    tap, result = Wiretap(kernel, plan), Result(plan)
    log = logging.handlers.BufferingHandler(1_000_000)
    root = logging.getLogger()
    level, disabled = root.level, root.manager.disable
    logging.disable(logging.NOTSET)
    root.addHandler(log)
    try:
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as folder,
            installed(kernel, network, plan.seed, tap),
        ):
            world = World(plan, kernel, network, Path(folder), tap)
            world.live(result)
            result.failures += kernel.crashes
            result.failures += checks.texts(world.clients, plan)
            result.failures += checks.logs(log.buffer, plan)
            result.failures += checks.files(Path(folder))
            result.happened, result.lines = world.weather.happened, kernel.lines
            result.seconds = kernel.now - 1_000.0
    finally:
        root.removeHandler(log)
        root.setLevel(level)
        logging.disable(disabled)
        gc.enable()
    return result
