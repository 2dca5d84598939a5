"""The one place where a simulation takes the place of the machine.

Names in the product's modules that stand for threads, clocks, chance, sockets and gRPC's transport
stand for the simulation's while it is installed. So do those in Python's pools and event loops. No
other module of the process sees them. Threads that other tests left running keep the real clock: an
event loop that read the simulation's would sleep for hours.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import errno
import inspect
import os
import queue
import random
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

import grpc
import grpc.aio

from grpc_comm import keys
from grpc_comm.server import guard
from grpc_comm.server.session_table import SessionRecord, SessionTable
from inference.loop import decode, draft_thread
from tests.simulate import threads
from tests.simulate.kernel import EPOCH, Kernel, Process, Running
from tests.simulate.network import Network
from tests.simulate.wire_client import Channel
from tests.simulate.wire_server import Server, Tap

PRODUCT = ("grpc_comm.", "inference.", "outrider.")
LIBRARY = ("concurrent.futures.", "asyncio.base_events", "asyncio.runners")

LOOK_SECONDS = 1.0
LOOKS = (
    (decode, "TICK_SECONDS"),
    (draft_thread, "LOOK_SECONDS"),
    (keys, "WATCH_SECONDS"),
    (guard, "WATCH_SECONDS"),
)
"""Times between two looks at what seldom changes, which are longer here: most turns were looks."""


def shim(real: ModuleType, **others: Any) -> Any:
    """A module with other things under some names."""
    return SimpleNamespace(**{**vars(real), **others})


class Table(SessionTable):
    """A target's sessions.

    records: by tenant and session id
    added: sessions since the target started
    """

    added = 0

    def add(self, record: SessionRecord) -> None:
        self.added += 1
        super().add(record)

    @property
    def records(self) -> dict[tuple[str, str], SessionRecord]:
        return self._records


class _ProcessLock:
    """A module's lock, one per process: a killed process may hold its own for ever."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self._locks = kernel, defaultdict[Process | None, threads.Lock](threads.Lock)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def _lock(self) -> threads.Lock:
        fiber = self._kernel.current
        return self._locks[None if fiber is None else fiber.process]


def _replacements(kernel: Kernel, network: Network, tap: Tap) -> dict[int, Any]:
    """What stands for what, by the identity of the real one."""

    owner = threading.get_ident()

    def clock(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        """The simulated function on the simulation's thread, the real one on any other."""
        return lambda *args: (simulated if threading.get_ident() == owner else real)(*args)

    def now() -> float:
        return kernel.now

    def wall() -> float:
        return EPOCH + kernel.now + kernel.skew

    def channel(address: str, options: Any = None) -> Channel:
        return Channel(network, address)

    def server(options: Any = None, interceptors: Any = ()) -> Server:
        return Server(network, interceptors, tap)

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        if not network.names.get(host):
            raise OSError("Name or service not known")
        return [
            (None, None, None, "", (one.rpartition(":")[0], port)) for one in network.names[host]
        ]

    def connect(*_: Any) -> None:
        raise TimeoutError("nobody looks closer in a simulation")

    def table(*args: Any) -> Table:
        made = Table(*args)
        assert kernel.current is not None
        kernel.current.process.holds["session records"] = made
        return made

    thing = {
        name: getattr(threads, name) for name in ("Thread", "Lock", "RLock", "Condition", "Event")
    }
    others = dict[str, Any](monotonic=now, perf_counter=now, time=wall, sleep=kernel.sleep)
    clocks = {name: clock(getattr(time, name), other) for name, other in others.items()}
    modules: dict[ModuleType, dict[str, Any]] = {
        threading: {**thing, "current_thread": threads.current_thread},
        time: clocks,
        queue: {"SimpleQueue": threads.SimpleQueue},
        asyncio: {"run": threads.run_on_loop},
        socket: {"getaddrinfo": resolve, "create_connection": connect},
    }
    found: dict[int, Any] = {
        id(getattr(module, name)): other
        for module, others in modules.items()
        for name, other in others.items()
    }
    found |= {id(module): shim(module, **others) for module, others in modules.items()}
    found[id(SessionTable)] = table
    found[id(concurrent.futures.thread._global_shutdown_lock)] = _ProcessLock(kernel)
    found[id(concurrent.futures.thread._threads_queues)] = {}
    found[id(grpc)] = shim(grpc, insecure_channel=channel, aio=shim(grpc.aio, server=server))
    return found


def _disk(kernel: Kernel) -> Any:
    """Path.open(), on a disk that may fail, or have no room."""
    real = Path.open

    def opens(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        process = kernel.current and kernel.current.process
        if process and kernel.now < process.fails_until:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        if process and kernel.now < process.full_until and "w" in mode:
            real(path, mode).close()  # which ends it at 0 bytes
            path = Path("/dev/full")
        return real(path, mode, *args, **options)

    return opens


class _Places:
    """Where the product names what is replaced: found once, and again when more is loaded."""

    loaded = 0
    names: ClassVar[list[tuple[dict[str, Any], str, Any]]]
    defaults: ClassVar[list[tuple[FunctionType, Any, Any]]]

    @classmethod
    def find(cls, replaced: dict[int, Any]) -> None:
        if cls.loaded == len(sys.modules):
            return
        cls.loaded, cls.names, cls.defaults = len(sys.modules), [], []
        modules = [
            m for name, m in sorted(sys.modules.items()) if name.startswith(PRODUCT + LIBRARY)
        ]
        for module in modules:
            for name, value in list(vars(module).items()):
                if id(value) in replaced:
                    cls.names.append((vars(module), name, value))
                if getattr(value, "__module__", None) == module.__name__:
                    cls._note(value, replaced)

    @classmethod
    def _note(cls, value: Any, replaced: dict[int, Any]) -> None:
        """Note functions whose defaults are replaced things."""
        members = vars(value).values() if inspect.isclass(value) else [value]
        for function in members:
            if isinstance(function, FunctionType):
                given, named = function.__defaults__, function.__kwdefaults__
                if any(id(one) in replaced for one in (*(given or ()), *(named or {}).values())):
                    cls.defaults.append((function, given, named))


@contextmanager
def installed(kernel: Kernel, network: Network, seed: int, tap: Tap) -> Iterator[None]:
    """Let the product run in the simulation, until the end of the block."""
    replaced = _replacements(kernel, network, tap)
    _Places.find(replaced)
    chance, state, urandom = random.Random(f"{seed} secrets"), random.getstate(), os.urandom
    try:
        Running.kernel = kernel
        for holder, name, value in _Places.names:
            holder[name] = replaced[id(value)]
        for function, given, named in _Places.defaults:
            function.__defaults__ = given and tuple(replaced.get(id(one), one) for one in given)
            if named:
                function.__kwdefaults__ = {
                    name: replaced.get(id(one), one) for name, one in named.items()
                }
        random.seed(f"{seed} product")
        os.urandom = random._urandom = chance.randbytes  # type: ignore[attr-defined]
        with ExitStack() as stack:
            stack.enter_context(patch.object(Path, "open", _disk(kernel)))
            for module, name in LOOKS:
                stack.enter_context(patch.object(module, name, LOOK_SECONDS))
            yield
    finally:
        kernel.end()
        os.urandom = random._urandom = urandom  # type: ignore[attr-defined]
        random.setstate(state)
        for function, given, named in _Places.defaults:
            function.__defaults__, function.__kwdefaults__ = given, named
        for holder, name, value in _Places.names:
            holder[name] = value
