"""The models that a target lists, by name. Each is loaded on first use and runs on its own
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from grpc_comm.observability.server_events import Listener, ModelServed, OfModel
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.errors import InvalidRequest


class Served(NamedTuple):
    """A loaded model, and its description for clients."""

    engine: Engine
    description: Description


class EngineThread:
    """Runs an engine on a thread until stop()."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stopped = engine, threading.Event()
        self._thread = threading.Thread(
            target=engine.run, args=(self._stopped,), name="model", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the engine. Returns when the forward pass in progress is done."""
        self._engine.stop(self._stopped)
        self._thread.join()


class Catalogue:
    """One loaded model, and others that are loaded on first use. Only a listed name reaches a
    loader.

    While a model loads, callers that request it wait and all others continue. A load that no caller
    waits for any more still completes, and serves the next caller. The next caller retries a load
    that failed.
    """

    def __init__(
        self, first: Served, listed: Mapping[str, Callable[[], Served]], emit: Listener
    ) -> None:
        self._first = first.description.model
        self._served: dict[str, Served] = {}
        self._listed, self._emit = dict(listed), emit
        self._threads: list[EngineThread] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._start(self._first, first)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([self._first, *self._listed]))

    async def served(self, name: str) -> Served:
        """Return the model of this name, the first where the name is empty.

        Raises InvalidRequest for a name that is not listed, and what its loader raises.
        """
        name = name or self._first
        if name not in self._served and name not in self._listed:
            raise InvalidRequest(
                f"this target does not serve {name[:80]!r}: it lists {', '.join(self.names)}"
            )
        if name not in self._served:
            if name not in self._loading:
                self._loading[name] = asyncio.create_task(self._load(name))
                self._loading[name].add_done_callback(
                    lambda done: done.cancelled() or done.exception()
                )  # retrieved here, raised in the callers that wait
            await asyncio.shield(self._loading[name])
        return self._served[name]

    async def _load(self, name: str) -> None:
        try:
            self._start(name, await asyncio.to_thread(self._listed[name]))
        finally:
            del self._loading[name]

    def _start(self, name: str, served: Served) -> None:
        emit, model = self._emit, served.description.model
        emit(ModelServed(served.engine, served.description))
        served.engine.listeners.append(lambda event: emit(OfModel(model, event)))
        self._served[name] = served
        self._threads.append(EngineThread(served.engine))

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()
