"""Client processes: the real connection, loop and proposers, and what their texts came to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.security import SecurityOptions
from inference.decode import Loop
from inference.draft_thread import Drafter, inline, on_thread
from inference.drafters.copied_text import CopySource
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import BestFirst, RoundProposer
from inference.errors import LimitExceeded, OutriderError, Unavailable
from inference.order import Decode, End, Pace
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.throttle import Silence, Throttle
from outrider.client.pools import Rows
from tests.simulate.hostile_client import Hostile
from tests.simulate.kernel import Fiber, Process
from tests.simulate.network import Network
from tests.simulate.plan import LONG_PATIENCE, ClientPlan, Plan, TextPlan
from tests.simulate.scripted_drafts import TimedDraft, knowledge, skilled
from tests.simulate.target_process import token_of
from tests.simulate.threads import Thread
from tests.simulate.wire_client import Channel
from tests.support.exact import own_text

CONNECT_SECONDS = 60.0


@dataclass
class Text:
    """A text under way, and how it ended.

    came: when each token came
    outcome: "whole", "left", or the name of the error that ended it; "" until then
    """

    client: ClientPlan
    plan: TextPlan
    tokens: list[int] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    error: str = ""
    resumes: int = 0
    reopenings: int = 0

    @property
    def params(self) -> SamplingParams:
        """A penalty, which this target does not feel, needs to know what the text made so far."""
        penalty = 0.5 if self.plan.seed % 3 == 0 else 0.0
        return SamplingParams(self.plan.temperature, seed=self.plan.seed, frequency_penalty=penalty)

    def due(self, kinds: int) -> list[int]:
        """The target's own text, up to its stop id."""
        own = own_text(self.plan.prompt, self.plan.tokens, self.params, kinds)
        if self.plan.stop in own:
            own = own[: own.index(self.plan.stop) + 1]
        return own

    def __str__(self) -> str:
        return f"client{self.client.number}'s text of {self.plan.tokens} tokens"


class Client:
    """A client's process, from its start to its end."""

    def __init__(
        self, plan: ClientPlan, world: Plan, network: Network, addresses: list[str], folder: Path
    ) -> None:
        self.plan, self.process = plan, Process(f"client{plan.number}")
        self.texts = [Text(plan, one) for one in plan.texts]
        self.losses: list[float] = []
        self._world, self._network, self._folder = world, network, folder
        self._kernel = network.kernel
        self._addresses, self._silence = addresses, Silence()

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.process.dead or all(text.outcome for text in self.texts)

    def start(self) -> Fiber:
        return self._kernel.spawn(self.process, "main", self._live)

    def _live(self) -> None:
        self._kernel.sleep(self.plan.starts)
        if self.plan.hostile:
            Hostile(self.plan, self._kernel, self._open_channel(), self._records).rage()
            for text in self.texts:
                text.outcome = text.outcome or "hostile"
            return
        connection = self._connected()
        if connection is None:
            return
        with connection:
            if self.plan.at_once:
                threads = [Thread(target=self._make, args=(connection, one)) for one in self.texts]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            else:
                for text in self.texts:
                    self._make(connection, text)

    def _connected(self) -> Connection | None:
        """Connect; who has patience asks again. None where an error ended all texts."""
        while True:
            try:
                return self._connect()
            except OutriderError as error:
                patient = isinstance(error, Unavailable) and self.plan.patience == LONG_PATIENCE
                if not patient:
                    for text in self.texts:
                        self._end(text, error)
                    return None
                self._kernel.sleep(1.0)

    def _records(self) -> list[Any]:
        """Session records of the targets that run."""
        found = [one.process.holds["session records"] for one in self._network.listeners.values()]
        return [record for table in found for record in table._records.values()]

    def _open_channel(self) -> Channel:
        address = self._addresses[self.plan.number % len(self._addresses)]
        return Channel(self._network, address)

    def _connect(self) -> Connection:
        addresses = self._addresses[:1] if self.plan.way == "one" else self._addresses
        named = "dns:///fleet:7000" if self.plan.way == "dns" else ",".join(addresses)
        security = SecurityOptions()
        if self.plan.tenant:
            secret = self._folder / self.plan.tenant
            security = SecurityOptions(token_file=secret)
        patience = Patience(self.plan.patience, self._note)
        return connect(named, security=security, timeout=CONNECT_SECONDS, patience=patience)

    def _note(self, notice: str) -> None:
        if notice.endswith("looking for it again"):
            self.losses.append(self._kernel.now)

    def _make(self, connection: Connection, text: Text) -> None:
        plan, text.began = text.plan, self._kernel.now
        session = connection.session(str(self.plan.number) if plan.seed % 2 else "")
        order = Decode(
            len(plan.prompt) + plan.tokens,
            frozenset() if plan.stop is None else frozenset({plan.stop}),
            plan.pace,
            plan.credit,
            beside=self._world.beside and not self.plan.draft,
        )
        try:
            with (
                closing(session),
                closing(
                    Loop(list(plan.prompt), text.params, session, order, self._drafter(text))
                ) as loop,
            ):
                for step in loop.steps():
                    text.tokens += step.tokens
                    text.came += [self._kernel.now] * len(step.tokens)
                    if step.end is End.DRAINED:
                        raise Unavailable("the target ended, and nobody went on")
                    if step.end is End.LIMIT:
                        raise LimitExceeded("the target's limit ends the text")
                    if plan.leaves is not None and len(text.tokens) >= plan.leaves:
                        text.outcome = "left"
                        break
                    if step.tokens and self.plan.slow_reader:
                        self._kernel.sleep(self.plan.slow_reader)
            self._end(text, None)
        except OutriderError as error:
            self._end(text, error)
        text.resumes, text.reopenings = session.traffic.resumes, session.traffic.reopenings

    def _end(self, text: Text, error: OutriderError | None) -> None:
        text.ended = self._kernel.now
        text.error = str(error or "")
        text.outcome = text.outcome or (type(error).__name__ if error else "whole")
        self._kernel.tell(f"{text} ends: {text.outcome} {text.error}")

    def _drafter(self, text: Text) -> Drafter:
        proposers = self._proposers(text)
        if not self.plan.threaded or not proposers:
            return inline(proposers)
        throttle = Throttle(self._silence) if text.plan.seed % 3 == 0 else None
        lent: Callable[..., object] = Rows(proposers).lent
        return on_thread(lent, throttle)  # type: ignore[arg-type]

    def _proposers(self, text: Text) -> list[Proposer]:
        kind, world = self.plan.draft, self._world
        if not kind:
            return []
        call = world.forward * world.call
        right = 0 if kind == "useless" else 70
        model = TimedDraft(skilled(text.params, world.kinds, right=right), self._kernel, call)
        if kind == "rounds" or text.plan.pace is Pace.WAIT:
            return [RoundProposer(model, BestFirst(nodes=8, depth=4), room=16)]
        known = knowledge(call, world.forward, 2 * world.way)
        draft = Draft(None if kind == "copying" else model)
        source = CopySource() if kind in ("copying", "both") else None
        return [draft.proposer(0, known, Prices(), source=source)]


def write_token(folder: Path, tenant: str) -> None:
    path = folder / tenant
    path.write_text(token_of(tenant))
    path.chmod(0o600)
