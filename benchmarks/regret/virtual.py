"""A target at the other end of a link, on a virtual clock: the real engine, the real loop and the
real proposers, with models that take what profiles say.

The target goes on with its forwards while the client drafts: both are threads that take turns on
the clock. Messages are those of grpc_comm and cross one after the other. Everything else takes no
time. What HTTP/2 and TLS put around messages is counted as bytes and takes no time. Not modelled:
lost packets, a machine's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from google.protobuf.message import Message

from benchmarks.regret.clock import Signal, VirtualClock
from grpc_comm import messages
from grpc_comm.client.call import ACKNOWLEDGED_AT_ONCE
from grpc_comm.proto import verifier_pb2 as pb
from inference.backends import Chosen, Model, Ranked, Segment
from inference.backends.batch import BatchShape
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, End, Progress, TokenLogProb
from inference.proposer import FRAMING_BYTES, Nodes
from inference.sampling import SamplingParams
from inference.text_log import TextCopy, Traffic
from inference.times_file import Profile
from inference.tree.candidates import ProposalStream


class Link(NamedTuple):
    """Seconds of a round trip, and of a byte in either direction."""

    round_trip: float
    byte_time: float

    def crossing(self, size: int) -> float:
        """Seconds that a message of so many bytes is on its way."""
        return self.round_trip / 2 + size * self.byte_time


class MeteredModel:
    """A Model each of whose calls takes what a profile says. calls: so far"""

    def __init__(self, model: Model, profile: Profile, spend: Callable[[float], None]) -> None:
        self.rows, self.capacity = model.rows, model.capacity
        self.max_nodes, self.masks, self.branches = model.max_nodes, model.masks, model.branches
        self.calls = 0
        self._model, self._profile, self._spend = model, profile, spend

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        self._spend_on(segments)
        return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self._spend_on(segments)
        return self._model.rank(segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self._profile.padded(rows, nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)

    def _spend_on(self, segments: Sequence[Segment]) -> None:
        shape = BatchShape.of(segments)
        self.calls += 1
        self._spend(self._profile.seconds(shape.rows, shape.nodes, shape.slots))


class _Way:
    """One direction of a link: what is sent first comes first."""

    def __init__(self, clock: VirtualClock, link: Link) -> None:
        self._clock, self._link, self._latest = clock, link, 0.0

    def send(self, message: Message, arrive: Callable[[], None]) -> int:
        """Something happens when the message has come; returns its bytes."""
        size = message.ByteSize()
        self._latest = max(self._latest, self._clock.now() + self._link.crossing(size))
        self._clock.at(self._latest, arrive)
        return size


class VirtualServer:
    """A target whose forwards a thread of the clock makes as long as anybody has a session."""

    def __init__(self, clock: VirtualClock, engine: Engine) -> None:
        self.clock, self.engine = clock, engine
        self._asked = Signal()
        self._served = list[_Served]()

    def admit(self, served: _Served) -> None:
        """Serve a session from now on, until it closes."""
        self._served.append(served)
        if len(self._served) == 1:
            self.clock.start(self._run)

    def notify(self) -> None:
        """There may be something to do."""
        self.clock.notify(self._asked)

    def _run(self) -> None:
        try:
            while self._served:
                for one in [one for one in self._served if one.closing]:
                    self._served.remove(one)
                    one.end()
                if self._served and not self.engine.step():
                    self.clock.wait(self._asked)
        finally:
            for one in self._served:
                one.end()


class VirtualSession:
    """A TargetSession (inference/loop/decode.py), one text at a time.

    proposed: nodes sent so far.
    """

    stream = 0
    prompt_logprobs: tuple[TokenLogProb, ...] = ()

    def __init__(self, server: VirtualServer, link: Link) -> None:
        self.traffic, self.proposed = Traffic(), 0
        self._clock, self._server, self._link = server.clock, server, link
        self._there: _Served | None = None
        self._received, self._news = self._copy((), SamplingParams()), Signal()
        self.next_number = self._acknowledged = 0

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self.close()
        self._received, self._news = self._copy(prompt, params), Signal()
        self.next_number, self._acknowledged = 0, len(prompt)
        self._up = _Way(self._clock, self._link)
        self._there = _Served(self._server, self._link, self._hear)
        message = pb.Open(prompt=prompt, temperature=params.temperature, seed=params.seed)
        self._send(pb.ClientMessage(open=message))
        self._server.admit(self._there)

    def decode(self, order: Decode) -> None:
        self._received.set_order(order)
        self._send(pb.ClientMessage(decode=messages.write_decode(order)))

    def propose(self, nodes: Nodes) -> None:
        self.proposed += len(nodes.tokens)
        self.next_number = nodes.end
        for message in messages.write_nodes(nodes):
            self._send(pb.ClientMessage(nodes=message))

    def go(self, base: int) -> None:
        self._send(pb.ClientMessage(go=pb.Go(base=base)))

    def receive(self, timeout: float) -> Progress | None:
        progress = self._received.read()
        if progress is None and timeout > 0 and self._clock.wait(self._news, timeout):
            progress = self._received.read()
        if progress is None and self._live.ended:
            raise RuntimeError("the target's thread has ended")
        return progress

    def close(self) -> None:
        """Waits for the forward in hand."""
        if self._there is not None:
            self._there.close()
            self._there = None

    def _hear(self, message: pb.ServerMessage) -> None:
        """Tokens have come to the client's reader, whatever its loop is busy with."""
        received = self._received
        self.traffic.bytes_down += message.ByteSize() + FRAMING_BYTES
        self.traffic.messages_down += 1
        received.take(messages.read_tokens(message.tokens))
        if received.length - self._acknowledged >= ACKNOWLEDGED_AT_ONCE:
            self._acknowledged = received.length
            self._send(pb.ClientMessage(ack=pb.Ack(length=received.length)))
        self._clock.notify(self._news)

    def _copy(self, prompt: Sequence[int], params: SamplingParams) -> TextCopy:
        return TextCopy(prompt, params, self._server.engine.vocabulary, self.traffic)

    def _send(self, message: pb.ClientMessage) -> None:
        size = self._up.send(message, partial(self._live.hear, message))
        self.traffic.bytes_up += size + FRAMING_BYTES
        self.traffic.messages_up += 1

    @property
    def _live(self) -> _Served:
        assert self._there is not None, "open() comes first"
        return self._there


class _Served:
    """The session at the target."""

    _own: ProposalStream  # of the open session

    def __init__(
        self, server: VirtualServer, link: Link, hear: Callable[[pb.ServerMessage], None]
    ) -> None:
        self.closing = self.ended = False
        self._clock, self._engine, self._hear = server.clock, server.engine, hear
        self._server, self._down = server, _Way(server.clock, link)
        self._done = Signal()
        self._session: Session | None = None
        self._cursor = 0
        self._told = End.NOT

    def close(self) -> None:
        """Wait until the target has let the session go, which it does between two forwards."""
        self.closing = True
        self._server.notify()
        if not self.ended:
            self._clock.wait(self._done)

    def end(self) -> None:
        """Free the row."""
        self.ended = True
        if self._session is not None:
            self._engine.close(self._session)
        self._clock.notify(self._done)

    def hear(self, message: pb.ClientMessage) -> None:
        """A message of the client has come."""
        kind = message.WhichOneof("kind")
        if kind == "open":
            params = SamplingParams(message.open.temperature, seed=message.open.seed)
            session, _ = self._engine.open(message.open.prompt, params)
            self._session, self._cursor = session, session.length
            self._own = self._engine.join(session)
            self._engine.listen(self._own, self._tell)
        elif self.closing or self._session is None:
            return
        elif kind == "decode":
            self._engine.decode(self._session, messages.read_decode(message.decode))
        elif kind == "nodes":
            self._engine.append(self._session, self._own, messages.read_nodes(message.nodes))
        elif kind == "go":
            self._engine.go(self._session, message.go.base)
        else:
            self._engine.acknowledge(self._session, message.ack.length)
        self._server.notify()

    def _tell(self) -> None:
        """Send what the client has not been sent."""
        if self.closing or self._session is None:
            return
        progress = self._engine.progress(self._session, self._cursor, self._own)
        if not progress.tokens and progress.end is self._told:
            return
        self._cursor += len(progress.tokens)
        self._told = progress.end
        tokens = messages.write_tokens(progress, progress.end)
        message = pb.ServerMessage(tokens=tokens)
        self._down.send(message, lambda: None if self.closing else self._hear(message))
