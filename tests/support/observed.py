"""An engine whose answers and padding can be computed by hand, without a wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grpc_comm.observability.metrics import Ending, Metrics
from grpc_comm.observability.model_observer import ModelObserver
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, Pace
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from tests.support.wire_fixtures import Successor, describe

MODEL = "padded successor"
TENANT = "alice"
SESSION_ID = "0123456789abcdef"


class PaddedSuccessor(Successor):
    """A Successor that computes calls as 2 or 4 rows of 8 or 64 nodes."""

    capacity = 1_000

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return 2 if rows <= 2 else 4, 8 if nodes <= 8 else 64


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    """The value of the sample that has exactly these labels."""
    value = metrics.registry.get_sample_value(name, labels)
    assert value is not None, f"no {name} {labels}"
    return value


def dropped(metrics: Metrics) -> dict[str, float]:
    """Candidates that were dropped, by reason."""
    name = "outrider_dropped_candidates_total"
    return {reason: counted(metrics, name, reason=reason) for reason in metrics.dropped}


class Service:
    """A served model and its observer, without a wire."""

    def __init__(self, metrics: Metrics | None = None, model: str = MODEL) -> None:
        self.metrics = metrics or Metrics()
        self.model = PaddedSuccessor(4)
        self.engine = Engine(self.model, sequence_length=500, max_tree_nodes=32, vocabulary=4_000)
        served = describe(self.engine)
        self.metrics.add_engine(
            self.engine,
            replace(served, server_version="1.2", model=model, device="emulated: by hand"),
        )
        self.observer = ModelObserver(self.metrics, model)
        self.engine.listeners.append(self.observer.count)

    def open(
        self, prompt: Sequence[int], session_id: str = SESSION_ID, tenant: str = TENANT
    ) -> Session:
        session, future = self.engine.open(prompt, SamplingParams(), tenant=tenant)
        self.observer.name_session(session, session_id)
        self.engine.finish(future)
        self.observer.record_opened(session, future.result())
        return session

    def ask(self, session: Session, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """A forward with these candidates. parents: 0 for the root, else which candidate"""
        engine, stream = self.engine, self.engine.join(session)
        back = [number - parent if parent else 0 for number, parent in enumerate(parents, 1)]
        chances = [0.9] * len(tokens)
        engine.append(session, stream, Nodes(session.length - 1, 1, back, tokens, chances))
        engine.decode(session, Decode(session.length + 40, pace=Pace.WAIT))
        engine.go(session, session.length - 1)
        forwards = session.spent.forwards
        while session.spent.forwards == forwards:
            engine.step()
        engine.acknowledge(session, session.length)
        engine.leave(session, stream)

    def close(self, session: Session) -> None:
        self.engine.close(session)
        self.observer.record_end(session, Ending.CLOSED)
