"""The models that a target lists, by name. Each model is loaded on first use and runs on a separate
thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from grpc_comm.observability.log import log_event
from grpc_comm.observability.metrics import Metrics
from grpc_comm.observability.model_observer import ModelObserver
from grpc_comm.server.tasks import mark_retrieved
from grpc_comm.translate import Description
from inference.engine.engine import Engine
from inference.errors import InvalidRequest


class Served(NamedTuple):
    """A loaded model, and its description for clients."""

    engine: Engine
    description: Description


class RunningModel:
    """A loaded model whose engine runs on a thread until stop().

    observer: counts and logs events of the model's sessions
    """

    def __init__(self, served: Served, metrics: Metrics) -> None:
        self.engine, self.description = served
        self.observer = ModelObserver(metrics, self.description.model)
        self.engine.listeners.append(self.observer.count)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self.engine.run, args=(self._stopped,), name="model", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the engine. Returns when the current forward pass is done."""
        self.engine.stop(self._stopped)
        self._thread.join()


class Catalogue:
    """One loaded model, and others that are loaded on first use. Only listed names can be loaded.

    While a model loads, callers that request it wait, and all others continue. Loading completes
    even if no caller waits for it any more, so that the next caller can use the model. After a
    failed load, the next caller retries.
    """

    def __init__(
        self, first: Served, listed: Mapping[str, Callable[[], Served]], metrics: Metrics
    ) -> None:
        self._first = first.description.model
        self._models: dict[str, RunningModel] = {}
        self._listed, self._metrics = dict(listed), metrics
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._start(self._first, first)

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([self._first, *self._listed]))

    async def model(self, name: str) -> RunningModel:
        """Return the model with this name; for an empty name, the first model.

        Raises InvalidRequest for a name that is not listed, and any error of the loader.
        """
        name = name or self._first
        if name not in self._models and name not in self._listed:
            raise InvalidRequest(
                f"this target does not serve {name[:80]!r}: it lists {', '.join(self.names)}"
            )
        if name not in self._models:
            if name not in self._loading:
                self._loading[name] = asyncio.create_task(self._load(name))
                self._loading[name].add_done_callback(mark_retrieved)  # waiting callers raise it
            await asyncio.shield(self._loading[name])
        return self._models[name]

    async def _load(self, name: str) -> None:
        try:
            self._start(name, await asyncio.to_thread(self._listed[name]))
        finally:
            del self._loading[name]

    def _start(self, name: str, served: Served) -> None:
        description = served.description
        fields = ("model", "device", "dtype", "rows", "sequence_length", "max_tree_nodes")
        log_event("model served", **{field: getattr(description, field) for field in fields})
        self._metrics.add_engine(served.engine, description)
        self._models[name] = RunningModel(served, self._metrics)

    def stop(self) -> None:
        for model in self._models.values():
            model.stop()
