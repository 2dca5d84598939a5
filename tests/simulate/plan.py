"""What a seed stands for: a configuration, clients and faults, as plain data that can shrink."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from inference.order import Pace

QUIET_FROM = 40.0
"""Seconds after which no fault begins."""

LONG_PATIENCE = 900.0
"""Of a client whose texts must all come whole."""

MOST_SESSIONS = 6
"""That each key may have, where its limit is not drawn."""

STEADY_EVERY = 12
"""One seed of so many compares rates."""

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
    return draw_steady(seed) if seed % STEADY_EVERY == STEADY_EVERY - 1 else draw_swarm(seed)


def draw_swarm(seed: int) -> Plan:
    """Draw any configuration, clients and faults."""
    chance, more = random.Random(f"{seed} plan"), random.Random(f"{seed} more")
    rows = chance.choice((1, 2, 3, 4, 8))
    keys = chance.random() < 0.5
    kinds = chance.choice((3, 8, 40))
    calm = chance.random() < 0.12
    forward = chance.choice((0.01, 0.05, 0.2, 0.5, 1.0))
    clients = tuple(
        _client(chance, number, keys=keys, kinds=kinds) for number in range(chance.randint(1, 5))
    )
    if chance.random() < 0.25:
        clients += _spike(chance, len(clients), keys=keys, kinds=kinds)
    return Plan(
        seed=seed,
        replicas=chance.choice((1, 1, 2, 3)),
        rows=rows,
        waiting=chance.choice((2, 8, 64)),
        lease=chance.choice((3.0, 3.0, 5.0, 15.0)),
        keys=keys,
        limit=more.choice((1, 2, 3, MOST_SESSIONS)) if keys else MOST_SESSIONS,
        sharing=chance.random() < 0.3,
        beside=chance.random() < 0.3,
        kinds=kinds,
        forward=forward,
        call=chance.choice((0.5, 1.5, 3.0)),
        node=chance.choice((0.0, 0.02, 0.2)),
        way=chance.choice((0.0005, 0.01, 0.08)),
        jitter=chance.choice((0.0, 0.0, 0.02)),
        yields=chance.choice((0.0, 0.02, 0.1, 0.3)),
        clients=tuple(_with_prefixes(more, one, kinds) for one in clients),
        faults=() if calm else _faults(chance, more, clients, forward, keys=keys),
    )


def draw_steady(seed: int) -> Plan:
    """Draw a plan without faults: long texts, each with a draft, that begin together."""
    chance = random.Random(f"{seed} steady")
    plan, pairs = draw_swarm(seed), (("growing", "useless"), ("both", "useless"))
    drafts = chance.choice((("growing",), ("both",), *pairs, *pairs, ("useless",), ("copying",)))
    cut = Fault(100 * plan.forward, "cut", 0, 0.0)
    clients = tuple(
        replace(
            _client(chance, number, keys=False, kinds=plan.kinds),
            starts=0.0,
            way="one",
            draft=draft,
            patience=LONG_PATIENCE,
            slow_reader=0.0,
            hostile=False,
            texts=(
                replace(
                    _text(chance, plan.kinds),
                    tokens=272,
                    pace=Pace.GO_ON,
                    credit=0,
                    stop=None,
                    leaves=None,
                ),
            ),
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
        faults=(cut,) if chance.random() < 0.25 else (),
    )


def _client(chance: random.Random, number: int, *, keys: bool, kinds: int) -> ClientPlan:
    texts = tuple(_text(chance, kinds) for _ in range(chance.choice((1, 1, 2, 3))))
    return ClientPlan(
        number=number,
        starts=chance.choice((0.0, chance.uniform(0, 20))),
        tenant=chance.choice(TENANTS) if keys else "",
        way=chance.choice(("one", "list", "list", "dns")),
        patience=chance.choice((LONG_PATIENCE, LONG_PATIENCE, 10.0, 10.0, 0.0)),
        draft=chance.choice(("", "", "growing", "copying", "both", "rounds", "useless")),
        threaded=chance.random() < 0.7,
        slow_reader=chance.choice((0.0, 0.0, 0.0, 0.05)),
        at_once=chance.random() < 0.4,
        texts=texts,
        runner=chance.random() < 0.25,
        hostile=chance.random() < 0.12,
    )


def _with_prefixes(chance: random.Random, client: ClientPlan, kinds: int) -> ClientPlan:
    """The client, with texts some of which begin as those of other clients do."""
    same = tuple(7 * at % kinds for at in range(chance.choice((8, 30))))
    texts = [
        replace(text, prompt=same + text.prompt) if chance.random() < 0.4 else text
        for text in client.texts
    ]
    return replace(client, texts=tuple(texts))


def _text(chance: random.Random, kinds: int) -> TextPlan:
    tokens = chance.choice((1, 5, 12, 12, 24, 24, 40, 80))
    credit = chance.choice((0, 0, 0, 3, 30))
    prompt = tuple(chance.randrange(kinds) for _ in range(chance.choice((1, 5, 20, 90))))
    return TextPlan(
        prompt=prompt,
        tokens=tokens,
        temperature=chance.choice((0.0, 0.7, 1.0)),
        seed=chance.randrange(1 << 63),
        pace=Pace.WAIT if chance.random() < 0.2 else Pace.GO_ON,
        credit=credit,
        stop=chance.randrange(kinds) if chance.random() < 0.15 else None,
        leaves=chance.randint(0, tokens) if chance.random() < 0.15 else None,
    )


def _spike(chance: random.Random, first: int, *, keys: bool, kinds: int) -> tuple[ClientPlan, ...]:
    """Many clients that all come at one moment for one short text."""
    at = chance.uniform(1, 20)
    one = _client(chance, 0, keys=keys, kinds=kinds)
    return tuple(
        replace(
            one,
            number=first + index,
            starts=at,
            hostile=False,
            texts=(replace(_text(chance, kinds), tokens=6),),
        )
        for index in range(chance.randint(3, 6))
    )


def _faults(
    chance: random.Random,
    more: random.Random,
    clients: Sequence[ClientPlan],
    forward: float,
    *,
    keys: bool,
) -> tuple[Fault, ...]:
    """A few kinds of faults, so that seeds differ in what they combine."""
    known = [kind for kind in FAULTS[:-1] if keys or ("key" not in kind and "limits" not in kind)]
    kinds = chance.sample(known, chance.randint(1, 5))
    often = chance.choice((2, 4, 8, 14))
    drawn = [
        Fault(
            at=_moment(chance, clients, forward),
            kind=chance.choice(kinds),
            who=chance.randrange(1000),
            seconds=chance.choice((0.05, 0.5, 3.0, 12.0, 35.0)) * chance.uniform(0.5, 1.5),
        )
        for _ in range(chance.randint(1, often))
    ]
    if more.random() < 0.15:
        impatient = [one for one in clients if 0 < one.patience < LONG_PATIENCE]
        at, seconds = _moment(more, impatient or clients, forward), more.choice((45.0, 120.0))
        drawn.append(Fault(at, "hung forward", more.randrange(1000), seconds))
    return tuple(sorted(drawn))


def _moment(chance: random.Random, clients: Sequence[ClientPlan], forward: float) -> float:
    """A moment at which a client is likely to be at work."""
    client = chance.choice(clients)
    seconds = forward * sum(text.tokens for text in client.texts) + 0.5
    return min(client.starts + 0.1 + chance.random() * seconds, QUIET_FROM)
