"""The plan of a seed: configuration, clients and faults, as plain data that can shrink."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from inference.order import Pace

QUIET_FROM = 40.0
"""Seconds after which no fault begins."""

LONG_PATIENCE = 900.0
"""Of a client whose texts must all come whole."""

MOST_SESSIONS = 6
"""That each key may have, where its limit is not drawn."""

UNRULED = 40
"""Seed of a text without a rule; tests/simulate/client_process.py has the others."""

STEADY_EVERY, STEADY_TOKENS = 24, 272
"""One seed of so many compares rates, over texts of so many tokens."""

FAULTS = (
    *("cut", "half open", "delay", "slow link"),
    *("kill target", "lose target", "drain target", "end target", "freeze target"),
    *("freeze client", "kill client", "lose client", "end sessions", "slow forwards"),
    *("failing forward", "clock jump", "revoke key", "lower limits", "spoil keys"),
    *("failing disk", "full disk", "hung forward"),
)


class Fault(NamedTuple):
    """Something that happens. who: a number, which chooses among those it may happen to"""

    at: float
    kind: str
    who: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} of {self.who} at {self.at:.2f} s for {self.seconds:.2f} s"


@dataclass(frozen=True)
class TextPlan:
    """A text. leaves: tokens after which its client closes it; stop: a stop id, or None"""

    prompt: tuple[int, ...]
    tokens: int
    temperature: float
    seed: int
    pace: Pace
    credit: int
    stop: int | None
    leaves: int | None


@dataclass(frozen=True)
class ClientPlan:
    """A client process and its texts, all at once or one after the other.

    way: how it names the targets: "one", "list" or "dns"
    draft: what drafts; "" for nothing
    runner: whether callers ask for its texts through the HTTP endpoint's runner
    """

    number: int
    starts: float
    tenant: str
    way: str
    patience: float
    draft: str
    threaded: bool
    slow_reader: float
    at_once: bool
    texts: tuple[TextPlan, ...]
    runner: bool
    hostile: bool = False


@dataclass(frozen=True)
class Plan:
    """All that a run follows from, beside its seed."""

    seed: int
    replicas: int
    rows: int
    waiting: int
    lease: float
    keys: bool
    limit: int  # sessions of each key
    sharing: bool
    beside: bool  # a draft at the target, for clients that have none
    kinds: int
    forward: float  # seconds of a root-only forward
    call: float  # part of that which a draft's call takes
    node: float  # part of that which each further node costs
    way: float  # seconds of the link
    jitter: float
    yields: float
    clients: tuple[ClientPlan, ...]
    faults: tuple[Fault, ...]
    steady: bool = False  # long texts without faults, whose rates are compared

    @property
    def work(self) -> float:
        """Seconds of all forwards, were each text made alone and twice."""
        texts = [text for client in self.clients for text in client.texts]
        tokens = sum(text.tokens + len(text.prompt) / 16 for text in texts)
        return 2 * tokens * self.forward * (1 + 16 * self.node)

    @property
    def waits(self) -> float:
        """Seconds that the target waits for drafts in rounds, if each token needs a tree of 8
        levels.
        """
        texts = [text for client in self.clients for text in client.texts]
        tokens = sum(text.tokens for text in texts if text.pace is Pace.WAIT)
        return 8 * tokens * self.forward * self.call

    @property
    def is_hostile(self) -> bool:
        """Whether a client means no good."""
        return any(client.hostile for client in self.clients)

    @property
    def crowded(self) -> bool:
        """Whether a session may have to wait, or be refused, for lack of room."""
        texts = sum(len(client.texts) for client in self.clients)
        return self.is_hostile or texts > min(self.rows, self.waiting, 4, self.limit)

    def __str__(self) -> str:
        texts = sum(len(one.texts) for one in self.clients)
        return (
            f"{len(self.clients)} clients with {texts} texts, {self.replicas} targets of "
            f"{self.rows} rows, faults: {'; '.join(map(str, self.faults)) or 'none'}"
        )


TENANTS = ("alice", "bob", "carol")


def draw(seed: int) -> Plan:
    """Draw a plan: every seed another configuration and other faults (a swarm)."""
    swarm = _Swarm(random.Random(f"{seed} plan"))
    plan = swarm.plan(seed)
    steady = seed % STEADY_EVERY == STEADY_EVERY - 1
    return swarm.steady(plan) if steady else swarm.unread(plan)


class _Swarm:
    """The dice of a seed, and what its clients have in common.

    same: how prompts begin that begin alike
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.keys = chance, chance.random() < 0.5
        self.kinds = chance.choice((3, 8, 40))
        self.forward = chance.choice((0.01, 0.05, 0.2, 0.5, 1.0))
        self.same = tuple(7 * at % self.kinds for at in range(chance.choice((8, 30))))

    def plan(self, seed: int) -> Plan:
        """Draw any configuration, clients and faults."""
        chance = self.chance
        clients = [self.client(number) for number in range(chance.randint(1, 5))]
        if chance.random() < 0.25:
            clients += self.spike(len(clients))
        return Plan(
            seed=seed,
            replicas=chance.choice((1, 1, 2, 3)),
            rows=chance.choice((1, 2, 3, 4, 8)),
            waiting=chance.choice((2, 8, 64)),
            lease=chance.choice((3.0, 3.0, 5.0, 15.0)),
            keys=self.keys,
            limit=chance.choice((1, 2, 3, MOST_SESSIONS)) if self.keys else MOST_SESSIONS,
            sharing=chance.random() < 0.3,
            beside=chance.random() < 0.3,
            kinds=self.kinds,
            forward=self.forward,
            call=chance.choice((0.5, 1.5, 3.0)),
            node=chance.choice((0.0, 0.02, 0.2)),
            way=chance.choice((0.0005, 0.01, 0.08)),
            jitter=chance.choice((0.0, 0.0, 0.02)),
            yields=chance.choice((0.0, 0.02, 0.1, 0.3)),
            clients=tuple(clients),
            faults=() if chance.random() < 0.12 else self.faults(clients),
        )

    def steady(self, plan: Plan) -> Plan:
        """Draw long texts in place of the plan's, each with a draft, that begin together."""
        chance, pairs = self.chance, (("growing", "useless"), ("both", "useless"))
        alone = ("growing", "both", "useless", "copying")
        drafts = chance.choice((*pairs, *pairs, *((one,) for one in alone)))
        plain: dict[str, Any] = {"pace": Pace.GO_ON, "credit": 0, "stop": None, "leaves": None}
        clients = tuple(
            replace(
                self.client(number),
                starts=0.0,
                tenant="",
                way="one",
                draft=draft,
                patience=LONG_PATIENCE,
                slow_reader=0.0,
                hostile=False,
                texts=(replace(self.text(), tokens=STEADY_TOKENS, seed=UNRULED + number, **plain),),
            )
            for number, draft in enumerate(drafts)
        )
        return replace(
            plan,
            steady=True,
            replicas=1,
            rows=max(plan.rows, len(drafts)),
            keys=False,
            limit=MOST_SESSIONS,
            call=chance.choice((0.3, 0.5, 1.5)),
            node=chance.choice((0.0, 0.02, 0.05, 0.2)),
            way=min(plan.way, plan.forward / 4),
            jitter=0.0,
            yields=0.0,
            clients=clients,
            faults=(Fault(100 * plan.forward, "cut", 0, 0.0),) if chance.random() < 0.25 else (),
        )

    def unread(self, plan: Plan) -> Plan:
        """Let a disk fail when the key of a client at work is revoked, in some plans."""
        chance = self.chance
        if not (plan.keys and plan.faults) or chance.random() < 0.75:
            return plan
        client, disk = chance.choice(plan.clients), 1 + 2 * chance.randrange(3)
        at, whose = self.moment([client]), TENANTS.index(client.tenant)
        more = Fault(at, "failing disk", disk, 4.0), Fault(at + 1, "revoke key", whose, 60.0)
        return replace(plan, faults=tuple(sorted((*plan.faults, *more))))

    def client(self, number: int) -> ClientPlan:
        chance = self.chance
        return ClientPlan(
            number=number,
            starts=chance.choice((0.0, chance.uniform(0, 20))),
            tenant=chance.choice(TENANTS) if self.keys else "",
            way=chance.choice(("one", "list", "list", "dns")),
            patience=chance.choice((LONG_PATIENCE, LONG_PATIENCE, 10.0, 10.0, 0.0)),
            draft=chance.choice(("", "", "growing", "copying", "both", "rounds", "useless")),
            threaded=chance.random() < 0.7,
            slow_reader=chance.choice((0.0, 0.0, 0.0, 0.05)),
            at_once=chance.random() < 0.4,
            texts=tuple(self.text() for _ in range(chance.choice((1, 1, 2, 3)))),
            runner=chance.random() < 0.25,
            hostile=chance.random() < 0.12,
        )

    def text(self) -> TextPlan:
        chance, tokens = self.chance, self.chance.choice((1, 5, 12, 12, 24, 24, 40, 80))
        own = [chance.randrange(self.kinds) for _ in range(chance.choice((1, 5, 20, 90)))]
        return TextPlan(
            prompt=(*(self.same if chance.random() < 0.4 else ()), *own),
            tokens=tokens,
            temperature=chance.choice((0.0, 0.7, 1.0)),
            seed=chance.randrange(1 << 63),
            pace=Pace.WAIT if chance.random() < 0.2 else Pace.GO_ON,
            credit=chance.choice((0, 0, 0, 3, 30)),
            stop=chance.randrange(self.kinds) if chance.random() < 0.15 else None,
            leaves=chance.randint(0, tokens) if chance.random() < 0.15 else None,
        )

    def spike(self, first: int) -> Iterator[ClientPlan]:
        """Many clients that all come at one moment for one short text."""
        one = replace(self.client(0), starts=self.chance.uniform(1, 20), hostile=False)
        for number in range(first, first + self.chance.randint(3, 6)):
            yield replace(one, number=number, texts=(replace(self.text(), tokens=6),))

    def faults(self, clients: Sequence[ClientPlan]) -> tuple[Fault, ...]:
        """A few kinds of faults, so that seeds differ in what they combine."""
        chance = self.chance
        known: tuple[str, ...] = FAULTS[:-1]
        if not self.keys:
            known = tuple(one for one in known if "key" not in one and "limits" not in one)
        kinds = chance.sample(known, chance.randint(1, 5))
        drawn = [
            Fault(
                at=self.moment(clients),
                kind=chance.choice(kinds),
                who=chance.randrange(1000),
                seconds=chance.choice((0.05, 0.5, 3.0, 12.0, 35.0)) * chance.uniform(0.5, 1.5),
            )
            for _ in range(chance.randint(1, chance.choice((2, 4, 8, 14))))
        ]
        if chance.random() < 0.15:
            impatient = [one for one in clients if 0 < one.patience < LONG_PATIENCE]
            at = self.moment(impatient or clients)
            seconds = chance.choice((45.0, 45.0, 120.0, 400.0))
            drawn.append(Fault(at, "hung forward", chance.randrange(1000), seconds))
        return tuple(sorted(drawn))

    def moment(self, clients: Sequence[ClientPlan]) -> float:
        """Draw a moment at which a client is likely to be at work."""
        client = self.chance.choice(clients)
        seconds = self.forward * sum(text.tokens for text in client.texts) + 0.5
        return min(client.starts + 0.1 + self.chance.random() * seconds, QUIET_FROM)


MOST_TRIES = 80


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the smallest plan found that fails still."""
    left, smaller = MOST_TRIES, True
    while smaller and left:
        smaller = False
        for other in _smaller(plan):
            left -= 1
            if fails(other):
                plan, smaller = other, True
                break
            if not left:
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, the greatest steps first."""
    faults, clients = plan.faults, plan.clients
    for size in _halves(len(faults)):
        for at in range(0, len(faults), size):
            yield replace(plan, faults=faults[:at] + faults[at + size :])
    for size in _halves(len(clients)):
        for at in range(0, len(clients), size):
            if size < len(clients):
                yield replace(plan, clients=clients[:at] + clients[at + size :])
    for at, client in enumerate(clients):
        for text in range(len(client.texts) if len(client.texts) > 1 else 0):
            fewer = replace(client, texts=client.texts[:text] + client.texts[text + 1 :])
            yield replace(plan, clients=(*clients[:at], fewer, *clients[at + 1 :]))
    if plan.replicas > 1:
        yield replace(plan, replicas=plan.replicas - 1)
    if plan.yields:
        yield replace(plan, yields=0.0)


def _halves(length: int) -> Iterator[int]:
    while length:
        yield length
        length //= 2
