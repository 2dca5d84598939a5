"""Models and a target that take time on a virtual clock: the real engine and the real models, and nobody waits."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from benchmarks.regret.clock import VirtualClock
from grpc_comm import translate
from grpc_comm.proto import verifier_pb2 as pb
from inference.accept import Verdict
from inference.backends import Model, Segment
from inference.backends.batch import Shape
from inference.backends.timed import TimeProfile
from inference.decode import Step, Superseded, never
from inference.drafters.hosted import Host, HostedDrafter
from inference.drafters.model import ModelDrafter
from inference.engine import Engine
from inference.errors import OutriderError
from inference.fused import fused_rounds
from inference.local import HeldVerifier
from inference.policy import Policy, Ranked
from inference.sampling import SamplingParams
from inference.session import Session
from inference.stats import Traffic
from inference.tree import IntArray, TokenTree

T = TypeVar("T")


class Link(NamedTuple):
    """Seconds of a round trip, and of a byte in either direction."""

    round_trip: float
    byte_time: float

    def crossing(self, size: int) -> float:
        """Seconds that a message of so many bytes is on its way."""
        return self.round_trip / 2 + size * self.byte_time


class Meter:
    """Adds up seconds."""

    def __init__(self) -> None:
        self.seconds, self._taken = 0.0, 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds

    def take(self) -> float:
        """What was added since the last time."""
        seconds, self._taken = self.seconds - self._taken, self.seconds
        return seconds


class MeteredModel:
    """A Model each of whose calls costs what a profile says: `spend` is told. It takes no time itself.

    To the engine all shapes seem to cost the same, since it goes by real seconds, and so it cuts no tree.
    """

    def __init__(self, model: Model, profile: TimeProfile, spend: Callable[[float], None]) -> None:
        self.rows, self.capacity, self.max_nodes, self.copies_rows = (
            model.rows,
            model.capacity,
            model.max_nodes,
            model.copies_rows,
        )
        self._model, self._profile, self._spend = model, profile, spend

    def choose(self, segments: Sequence[Segment]) -> list[IntArray]:
        self._spend_on(segments)
        return self._model.choose(segments)

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self._spend_on(segments)
        return self._model.rank(segments, k)

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return self.rows, self.max_nodes

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._model.copy_row(source, target, slots)

    def _spend_on(self, segments: Sequence[Segment]) -> None:
        shape = Shape.least(segments)
        self._spend(self._profile.seconds(shape.rows, shape.nodes, shape.slots))


class Arrival(Future[T]):
    """Is done when the clock has come to a moment; whoever asks for its result waits until then, and gets the value or the error."""

    def __init__(self, clock: VirtualClock, moment: float, value: T | OutriderError) -> None:
        super().__init__()
        if isinstance(value, OutriderError):
            self.set_exception(value)
        else:
            self.set_result(value)
        self._clock, self._moment = clock, moment

    def done(self) -> bool:
        return self._clock.now() >= self._moment

    def result(self, timeout: float | None = None) -> T:
        self._clock.wait_until(self._moment)
        return super().result(timeout)


class Exchange(NamedTuple):
    """One message and its answer: when it was sent, came to the target, was taken in hand, and when the answer was here."""

    sent: float
    came: float
    begun: float
    back: float
    bytes_down: int

    def tell(self, traffic: Traffic) -> None:
        """What the client hears of it, when it does."""
        traffic.queue_seconds += self.begun - self.came
        traffic.away_seconds += self.back - self.sent
        traffic.bytes_down += self.bytes_down


class VirtualVerifier:
    """A Verifier whose target is at the other end of a link, serves nobody else, and does one thing after the other.

    beside: the draft at the target's host, with a row of its own; host: what it goes by where nobody asks for certain trees.
    meter: is told what both models there spend. Messages are as long as those of grpc_comm. Does not go back behind a stop id. What comes
    of a round is computed when it is submitted and told when it arrives.
    """

    def __init__(
        self,
        engine: Engine,
        beside: Model,
        host: Host,
        meter: Meter,
        clock: VirtualClock,
        link: Link,
    ) -> None:
        self._engine, self._beside, self._host, self._meter, self._clock, self._link = (
            engine,
            beside,
            host,
            meter,
            clock,
            link,
        )
        self._session: Session | None = None
        self._traffic, self._owed = Traffic(), deque[tuple[float, Callable[[Traffic], None]]]()
        self._rounds, self._free, self._back = 0, 0.0, 0.0
        self._latest: list[int] | None = (
            None  # tokens that the round submitted last commits; None when it is dead
        )
        self.tree_budget = engine.max_tree_nodes

    @property
    def traffic(self) -> Traffic:
        """Of answers that have arrived."""
        while self._owed and self._owed[0][0] <= self._clock.now():
            self._owed.popleft()[1](self._traffic)
        return self._traffic

    def open(self, prompt: Sequence[int], params: SamplingParams) -> Future[None]:
        self.close()
        self._session, opened = self._engine.open(prompt, params)
        self._engine.finish(opened)
        self._rounds, self.tree_budget = 0, self._engine.max_tree_nodes
        seconds = self._meter.take()
        exchange = self._exchanged(pb.Open(prompt=prompt).ByteSize(), 0, seconds)

        def arrive(traffic: Traffic) -> None:
            exchange.tell(traffic)
            traffic.prefill_seconds += seconds

        return self._arriving(exchange, arrive, None)

    def submit(self, tree: TokenTree, assumed: Sequence[int] | None = None) -> Future[Verdict]:
        up = pb.ClientMessage(
            round=translate.write_round(self._rounds, self._live.length, 2**63, tree)
        ).ByteSize()
        if assumed is not None and list(assumed) != self._latest:
            self._latest, self._traffic.bytes_up = None, self._traffic.bytes_up + up
            return Arrival(
                self._clock, self._back, Superseded("the round before it came out otherwise")
            )
        answered = self._engine.verify(self._live, tree)
        self._engine.finish(answered)
        answer = answered.result()._replace(queue_seconds=0.0, model_seconds=self._meter.take())
        verdict = answer.verdict
        self._rounds, self.tree_budget, self._latest = (
            self._rounds + 1,
            answer.budget,
            Step(tree, verdict).tokens,
        )
        down = pb.ServerMessage(verdict=translate.write_verdict(self._rounds, answer)).ByteSize()
        exchange = self._exchanged(up, down, answer.model_seconds)

        def arrive(traffic: Traffic) -> None:
            exchange.tell(traffic)
            traffic.model_seconds += answer.model_seconds

        return self._arriving(exchange, arrive, verdict)

    def generate(
        self,
        max_tokens: int,
        stop_ids: frozenset[int],
        *,
        fused: bool = False,
        policy: Policy | None = None,
        enough: Callable[[], bool] = never,
    ) -> Iterator[int]:
        """The target does not wait for whoever takes its tokens, and what it has in hand when it is told to end still comes."""
        up = pb.ClientMessage(
            generate=translate.write_continue(
                max_tokens, stop_ids, self._live.length, 2**63, fused, policy
            )
        ).ByteSize()
        sent = self._clock.now()
        began = max(sent + self._link.crossing(up), self._free)
        self._traffic.bytes_up += up
        halt = math.inf  # when the target hears that it is enough
        for count, tokens in enumerate(self._stretch(max_tokens, stop_ids, fused, policy)):
            seconds = self._meter.take()
            self._free = began + seconds
            down = pb.ServerMessage(
                tokens=translate.write_tokens(tokens, 0, False, 0.0, seconds)
            ).ByteSize()
            self._clock.wait_until(self._free + self._link.crossing(down))
            self._traffic.model_seconds += seconds
            self._traffic.bytes_down += down
            self._traffic.away_seconds += self._clock.now() - sent if not count else 0.0
            yield from tokens
            if began >= halt:
                return
            began = self._free
            if halt == math.inf and enough():
                halt = self._clock.now() + self._link.crossing(
                    pb.ClientMessage(halt=pb.Halt()).ByteSize()
                )

    def close(self) -> None:
        if self._session is not None:
            self._engine.close(self._session)
            self._session = None

    def _stretch(
        self, max_tokens: int, stop_ids: frozenset[int], fused: bool, policy: Policy | None
    ) -> Iterator[Sequence[int]]:
        """What the target's host makes by itself, round by round."""
        held, session = HeldVerifier(self._engine, self._live), self._live
        if not fused:
            for token in held.generate(max_tokens, stop_ids):
                yield [token]
            return
        drafter = (
            HostedDrafter(self._beside, self._host)
            if policy is None
            else ModelDrafter(self._beside, policy)
        )
        for made in fused_rounds(
            list(session.tokens), session.params, drafter, held, max_tokens, stop_ids
        ):
            yield made.tokens

    def _exchanged(self, up: int, down: int, at_target: float) -> Exchange:
        """A message is sent now; the target begins with it when it is there and the one before is answered."""
        self._traffic.bytes_up += up
        sent = self._clock.now()
        came = sent + self._link.crossing(up)
        begun = max(came, self._free)
        self._free = begun + at_target
        self._back = self._free + self._link.crossing(down)
        return Exchange(sent, came, begun, self._back, down)

    def _arriving(
        self, exchange: Exchange, arrive: Callable[[Traffic], None], value: T
    ) -> Arrival[T]:
        self._owed.append((exchange.back, arrive))
        return Arrival(self._clock, exchange.back, value)

    @property
    def _live(self) -> Session:
        assert self._session is not None, "open() comes first"
        return self._session
