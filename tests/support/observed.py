"""An engine whose answers and padding can be computed by hand, without a wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from grpc_comm.observability.log import EventLog
from grpc_comm.observability.metrics import Metrics
from grpc_comm.observability.server_events import (
    CandidatesDropped,
    Drop,
    Ending,
    Event,
    Listeners,
    ModelServed,
    OfModel,
    SessionEnded,
    SessionOpened,
)
from grpc_comm.observability.session_record import SessionRecords
from inference.engine.engine import Engine
from inference.engine.session import Session
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


class Observers(Listeners):
    """The listeners that a target has."""

    def __init__(self) -> None:
        records = SessionRecords()
        self.metrics = Metrics(records)
        super().__init__([records, EventLog(records), self.metrics])


def dropped(events: Sequence[Event]) -> Counter[Drop]:
    """Candidates that were dropped, by reason."""
    return Counter(
        why
        for event in events
        if isinstance(event, CandidatesDropped)
        for why in [event.why] * event.candidates
    )


class Service:
    """The events of a server, without a wire."""

    def __init__(self, listener: Listeners, model: str = MODEL) -> None:
        self.emit = listener
        self.model = PaddedSuccessor(4)
        self.engine = Engine(self.model, sequence_length=500, max_tree_nodes=32, vocabulary=4_000)
        served = describe(self.engine)
        self.description = replace(
            served, server_version="1.2", model=model, device="emulated: by hand"
        )
        listener(ModelServed(self.engine, self.description))
        self.engine.listeners.append(lambda event: listener(OfModel(model, event)))

    def open(
        self, prompt: Sequence[int], session_id: str = SESSION_ID, tenant: str = TENANT
    ) -> Session:
        session, future = self.engine.open(prompt, SamplingParams())
        self.engine.finish(future)
        future.result()
        self.emit(SessionOpened(session, session_id, tenant))
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
        self.emit(SessionEnded(session, Ending.CLOSED))
