"""Client processes: the real connection, loop and proposers, and the outcome of their texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event as Gone
from typing import Any

from grpc_comm.client.channel import Channel as ReplicaChannel
from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.client.replicas import Replicas
from grpc_comm.security import SecurityOptions
from inference.drafters.growing_proposer import Draft
from inference.drafters.round_proposer import BestFirst, RoundProposer
from inference.errors import LimitExceeded, OutriderError
from inference.loop.draft_thread import Drafter, inline, on_thread
from inference.loop.throttle import Baseline, Throttle
from inference.order import Pace, TokenLogProb
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.times_file import StoredTimes
from outrider.client.drafting import Rows
from outrider.text.completion import Completion, Request, Show, complete
from tests.simulate.endpoint_texts import LETTERS, Endpoint
from tests.simulate.hostile_client import Hostile
from tests.simulate.kernel import Fiber, Kernel, Process
from tests.simulate.memory import reachable
from tests.simulate.network import Network
from tests.simulate.plan import ClientPlan, Plan, TextPlan
from tests.simulate.scripted_drafts import TimedDraft, Watched, knowledge
from tests.simulate.target_process import KINDS, grammars_of
from tests.simulate.threads import Event, Thread
from tests.support.exact import own_scores, own_text
from tests.support.scripted import RULED, skilled

CONNECT_SECONDS = 60.0

SECONDS = {(1, 1): 0.5, (1, 16): 0.75}
"""Times that clients store."""


@dataclass
class Text:
    """A text under way, and how it ended.

    came: when each token came
    accepted: tokens that were candidates
    forwards: of the target, in which it took part
    outcome: "whole", "left", or the name of the error that ended it; "" until then
    """

    client: ClientPlan
    plan: TextPlan
    kinds: int
    tokens: list[int] = field(default_factory=list)
    came: list[float] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    outcome: str = ""
    error: str = ""
    accepted: int = 0
    forwards: int = 0
    resumes: int = 0
    reopenings: int = 0
    logprobs: Sequence[TokenLogProb] = ()
    prompt_logprobs: Sequence[TokenLogProb] = ()

    @property
    def params(self) -> SamplingParams:
        """Half of the texts have a rule, or ask for log-probabilities."""
        seed, kinds = self.plan.seed, self.kinds
        rules: dict[int, dict[str, Any]] = {
            0: {"frequency_penalty": 0.5, "logit_bias": ((1, 2.0),)},
            1: {"grammar": RULED.grammar} if kinds == KINDS else {"repetition_penalty": 1.5},
            2: {"min_tokens": 8, "end_ids": (0,), "presence_penalty": 1.0},
            3: {"logprobs": seed % 3, "prompt_logprobs": seed % 2 == 0},
            4: {"logprobs": 1, "prompt_logprobs": True, "frequency_penalty": 0.1},
        }
        params = SamplingParams(self.plan.temperature, seed=seed, **rules.get(seed // 8 % 10, {}))
        return params.on_the_wire()

    @property
    def request(self) -> Request:
        plan, stop = self.plan, [] if self.plan.stop is None else [self.plan.stop]
        return Request(0, "", plan.prompt, self.params, plan.tokens, frozenset(stop))

    def take(self, done: Completion, now: float) -> None:
        """Take what has come until now."""
        fresh = done.token_ids[len(self.tokens) :]
        self.tokens += fresh
        self.came += [now] * len(fresh)
        self.accepted = done.num_accepted_tokens
        self.forwards = done.traffic.forwards
        self.resumes, self.reopenings = done.traffic.resumes, done.traffic.reopenings
        self.logprobs, self.prompt_logprobs = done.logprobs, done.prompt_logprobs

    def due(self) -> list[int]:
        """The target's own text, up to its stop id."""
        own = own_text(
            self.plan.prompt, self.plan.tokens, self.params, self.kinds, grammars_of(self.kinds)
        )
        if self.plan.stop in own:
            own = own[: own.index(self.plan.stop) + 1]
        return own

    @property
    def is_scored(self) -> bool:
        """Whether the log-probabilities of a whole text are the target's own."""
        likeliest, prompt = self.params.logprobs, self.plan.prompt
        own = own_scores((*prompt, *self.tokens), 1, likeliest or 0, self.kinds)
        first = len(prompt) - 1 if self.params.prompt_logprobs else 0
        due = (own[:first], own[len(prompt) - 1 :]) if likeliest is not None else ([], [])
        return (list(self.prompt_logprobs), list(self.logprobs)) == due

    def __str__(self) -> str:
        return f"client{self.client.number}'s text of {self.plan.tokens} tokens"


class Client:
    """A client's process, from its start to its end."""

    def __init__(
        self, plan: ClientPlan, world: Plan, network: Network, addresses: list[str], folder: Path
    ) -> None:
        self.plan, self.process = plan, Process(f"client{plan.number}")
        self.texts = [Text(plan, one, world.kinds) for one in plan.texts]
        self.losses: list[float] = []
        self._world, self._network, self._folder = world, network, folder
        self._kernel = network.kernel
        self._addresses, self._silence = addresses, Baseline()

    @property
    def over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.process.dead or all(text.outcome for text in self.texts)

    def start(self) -> Fiber:
        return self._kernel.spawn(self.process, "main", self._live)

    def _live(self) -> None:
        self._kernel.sleep(self.plan.starts)
        if self.plan.hostile:
            Hostile(self.plan, self._world.kinds, self._network, self._addresses).rage()
            for text in self.texts:
                text.outcome = "hostile"
        elif connection := self._connected():
            with connection:
                self._keep()
                self._make_all(connection)
                if sessions := reachable(connection)["RemoteSession"]:
                    words = f"a connection holds {sessions} sessions that ended"
                    self._kernel.crashes.append(words)
                self._keep()

    def _make_all(self, connection: Connection) -> None:
        if self.plan.runner:
            endpoint = Endpoint(partial(self._make, connection), self._world.forward)
            return endpoint.serve(self.texts, at_once=self.plan.at_once)
        threads = [
            Thread(target=self._make, args=(connection, one, lambda _: None, Event()))
            for one in self.texts
        ]
        for thread in threads:
            thread.start()
            if not self.plan.at_once:
                thread.join()
        for thread in threads:
            thread.join()

    def _keep(self) -> None:
        """Read the times that others store, and store them anew: no disk changes them."""
        stored = StoredTimes(self._folder, "draft", "a draft", {"device": "simulated"})
        if stored.load(self._kernel.tell) not in (None, SECONDS):
            self._kernel.crashes.append("stored times have changed")
        stored.store(SECONDS)

    def _connected(self) -> Connection | None:
        """Connect; None where an error ended all texts."""
        try:
            return self._connect()
        except OutriderError as error:
            for text in self.texts:
                self._end(text, "", error)
            return None

    def _connect(self) -> Connection:
        addresses = self._addresses[:1] if self.plan.way == "one" else self._addresses
        named = "dns:///fleet:7000" if self.plan.way == "dns" else ",".join(addresses)
        secret = self._folder / self.plan.tenant if self.plan.tenant else None
        security = SecurityOptions(token_file=secret)
        patience = Patience(self.plan.patience, self._note)
        made = connect(named, security=security, timeout=CONNECT_SECONDS, patience=patience)
        _watch_order(made._replicas, self._kernel)
        return made

    def _note(self, notice: str) -> None:
        if notice.endswith("reconnecting"):
            self.losses.append(self._kernel.now)

    def _make(self, connection: Connection, text: Text, show: Show, gone: Gone) -> Completion:
        """Make a text as the product does. gone: ends it where it is"""
        plan, text.began = text.plan, self._kernel.now
        session = connection.session(str(self.plan.number) if plan.seed % 2 else "")
        beside = self._world.beside and not self.plan.draft
        order = text.request.order(plan.pace, colocated=beside)
        if plan.leaves == 0:
            gone.set()

        def tell(done: Completion) -> None:
            text.take(done, self._kernel.now)
            if plan.leaves is not None and len(text.tokens) >= plan.leaves:
                gone.set()
            self._kernel.sleep(self.plan.slow_reader)

        done = complete(
            text.request,
            session,
            self._drafter(text, session),
            LETTERS,  # type: ignore[arg-type]
            show,
            gone,
            order=replace(order, credit=plan.credit),
            on_commit=tell,
        )
        text.take(done, self._kernel.now)
        error = done.failure
        if done.finish_reason == "length" and len(text.tokens) < plan.tokens:
            error = LimitExceeded("the target's limit ends the text")
        self._end(text, "left" if done.finish_reason == "cancelled" else "whole", error)
        return done

    def _end(self, text: Text, outcome: str, error: OutriderError | None = None) -> None:
        text.ended, text.error = self._kernel.now, str(error or "")
        text.outcome = type(error).__name__ if error else outcome
        self._kernel.tell(f"{text} ends: {text.outcome} {text.error}")

    def _drafter(self, text: Text, session: RemoteSession) -> Drafter:
        proposers = [Watched(one, session) for one in self._proposers(text)]
        if not self.plan.threaded or not proposers:
            return inline(proposers)
        throttle = Throttle(self._silence) if text.plan.seed % 3 == 0 else None
        return on_thread(Rows(proposers).lent, throttle)

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
        return [draft.proposer(0, known, Prices(), copies=kind in ("copying", "both"))]


def _watch_order(replicas: Replicas, kernel: Kernel) -> None:
    """Look at which replica is tried first."""
    order = replicas.order

    def watched(key: str) -> list[ReplicaChannel]:
        channels = order(key)
        serving = {one.channel for one in list(replicas._replicas.values()) if one.serves}
        if channels[0] not in serving and serving & {*channels}:
            kernel.crashes.append("a replica that does not serve is tried first")
        return channels

    replicas.order = watched  # type: ignore[method-assign]
