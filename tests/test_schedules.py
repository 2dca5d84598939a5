"""Whatever proposers say and whenever it comes, whoever joins, leaves, is evicted or cut off: every
text is the target's own, and ends, credit and budgets hold at every moment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import MAX_CREDIT, Decode, End, Pace
from inference.proposer import NOBODY, Nodes
from inference.sampling import SamplingParams
from inference.tree.candidates import ProposalStream
from tests.support.clock import Clock
from tests.support.exact import Exact, exact_engine, own_text, text_of
from tests.support.scripted import BASE, Candidate, nodes_of

KINDS = 3
"""Tokens that the target chooses among: guesses come true often."""

LONGEST = 60
"""Of a session, prompt included."""


@dataclass
class Client:
    """One text, what was said of it, and what its reader has."""

    engine: Engine
    session: Session
    own: list[int]
    order: Decode
    streams: list[ProposalStream] = field(default_factory=list)
    sent: list[tuple[ProposalStream, Nodes]] = field(default_factory=list)  # with the stream
    numbers: int = 0
    read: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Of the text that its reader has."""
        return self.session.prompt_length + len(self.read)

    def follow(self) -> None:
        """Read what is there; it must go on where the last ended."""
        now = self.engine.progress(self.session, self.length)
        assert now.position == self.length
        assert len(now.proposers) == len(now.tokens)
        self.read += now.tokens
        assert not now.tokens or now.proposers[-1] == NOBODY

    def check(self) -> None:
        session, order = self.session, self.order
        made = text_of(session)
        assert made == self.own[: len(made)]
        assert session.length <= max(order.end, session.prompt_length) <= LONGEST
        assert session.length <= session.acknowledged + MAX_CREDIT
        assert not order.stop_ids & set(made[:-1])
        assert self.read == made[: len(self.read)]


class World:
    """An engine and its clients. What is said may be kept back, lost, or said twice."""

    def __init__(self, rows: int, cost: float) -> None:
        self.engine: Engine
        self.model: Exact
        self.clock: Clock
        self.engine, self.model, self.clock = exact_engine(
            rows,
            kinds=KINDS,
            sequence_length=LONGEST,
            max_tree_nodes=8,
            cost=lambda rows, nodes: 0.010 * (1 + cost * rows * nodes),
        )
        self.clients: list[Client] = []
        self._amid: list[tuple[Client, list[int]]] = []
        self.model.during = self._while_computing

    def open(self, prompt: list[int], seed: int, tenant: str, order: Decode) -> None:
        if len(self.clients) == 4:
            return
        params = SamplingParams(0.7 if seed else 0.0, seed=seed)
        session, _ = self.engine.open(prompt, params, tenant=tenant)
        own = own_text(prompt, LONGEST, params, KINDS)
        client = Client(self.engine, session, own, order)
        self.engine.decode(session, order)
        client.streams.append(self.engine.join(session))
        self.clients.append(client)

    def happen(self, what: str, who: int, dice: list[int]) -> None:
        """One event; dice decide what is left open."""
        if what == "forward":
            before = {client.session: client.session.length for client in self.clients}
            self.engine.step()  # a prompt's chunk, or trees
            for client in self.clients:
                grown = client.session.length - before[client.session]
                credit = client.order.credit or MAX_CREDIT
                assert grown <= max(
                    client.session.acknowledged + credit - before[client.session], 0
                )
        elif what == "wait":
            self.clock.now += dice[0] % 7
        elif self.clients:
            client = self.clients[who % len(self.clients)]
            if client.session.closed is None:
                getattr(self, what)(client, dice)

    def propose(self, client: Client, dice: list[int]) -> None:
        """A mixture of the truth and of anything, below any committed token."""
        session = client.session
        base = max(session.length - 1 + dice[0] % 5 - 3, 0)
        proposals = list[Candidate]()
        for die in dice:
            above = [BASE, client.numbers - 2][die % 2] if die < 20 else client.numbers - 1
            parent = max(above, BASE) if proposals else BASE
            at = base + 1 - session.prompt_length + len(proposals)
            token = client.own[max(at, 0) % LONGEST] if die % 7 else die % KINDS
            chance = [1.0, 0.9, 0.5, 0.0, 2.0**-16][die % 5]
            proposals.append(Candidate(client.numbers, parent, token, chance))
            client.numbers += 1
        client.sent.append((client.streams[-1], nodes_of(base, proposals, dice[0] % 3)))
        if dice[0] % 5:
            self.deliver(client, [-1])

    def deliver(self, client: Client, dice: list[int]) -> None:
        """Something that was said arrives: late, or once more."""
        if client.sent:
            stream, nodes = client.sent[dice[0] % len(client.sent)]
            self.engine.append(client.session, stream, nodes)

    def amid(self, client: Client, dice: list[int]) -> None:
        """Something is said while the next forward computes."""
        self._amid.append((client, dice))

    def _while_computing(self) -> None:
        said, self._amid = self._amid, []
        for client, dice in said:
            if client.session.closed is None:
                (self.propose if dice[1] % 3 else self.deliver)(client, dice)

    def rejoin(self, client: Client, dice: list[int]) -> None:
        """The stream is gone, and another comes, whose numbers begin anew."""
        if dice[0] % 2:
            self.engine.leave(client.session, client.streams[-1])
        client.streams.append(self.engine.join(client.session))
        client.numbers = 0

    def read(self, client: Client, dice: list[int]) -> None:
        client.follow()
        if dice[0] % 4:
            behind = dice[0] % 3
            self.engine.acknowledge(
                client.session, max(client.length - behind, client.session.prompt_length)
            )

    def detach(self, client: Client, dice: list[int]) -> None:
        self.engine.detach(client.session)

    def attach(self, client: Client, dice: list[int]) -> None:
        self.engine.attach(client.session)

    def go(self, client: Client, dice: list[int]) -> None:
        self.engine.go(client.session, client.session.length - 1 + dice[0] % 2)

    def ask(self, client: Client, dice: list[int]) -> None:
        """The same again, or more."""
        order, more = client.order, dice[0] % 4
        client.order = Decode(
            min(order.end + more, LONGEST),
            order.stop_ids,
            order.pace,
            order.credit,
        )
        self.engine.decode(client.session, client.order)

    def close(self, client: Client, dice: list[int]) -> None:
        if dice[0] % 3 == 0:
            self.engine.close(client.session)

    def finish(self) -> None:
        """All clients read on to their ends."""
        for client in self.clients:
            if client.session.closed is None:
                self.engine.attach(client.session)
        for _ in range(600):
            self.engine.step()
            self.clock.now += 1.0
            for client in self.clients:
                if client.session.closed is None:
                    client.follow()
                    self.engine.acknowledge(client.session, client.length)
                    self.engine.go(client.session, client.session.length - 1)
                    if client.session.end is not End.NOT:
                        client.check()
                        self.engine.close(client.session)
            if all(client.session.closed for client in self.clients):
                return
        raise AssertionError([client.session.end for client in self.clients])


WEIGHTS = {
    "forward": 6,
    "propose": 5,
    "deliver": 2,
    "amid": 4,
    "read": 3,
    "go": 2,
    "attach": 2,
    "ask": 2,
    **dict.fromkeys(("wait", "rejoin", "detach", "close"), 1),
}
WHATS = [what for what, weight in WEIGHTS.items() for _ in range(weight)]
ENDS, CREDITS = [60, 40, 20, 5], [0, 0, 30, 3]
STOPS: list[frozenset[int]] = [frozenset(), frozenset(), frozenset(), frozenset({1})]


def test_any_schedule_gives_the_targets_own_texts() -> None:
    """Long ones, so that sessions come far, and much of it is proposed."""
    named = made = 0
    for seed in range(40):
        dice = random.Random(seed)
        openings = [
            (
                [dice.randrange(KINDS) for _ in range(1 + dice.randrange(6))],
                dice.randrange(3),
                dice.choice("ab"),
                Decode(
                    dice.choice(ENDS),
                    dice.choice(STOPS),
                    dice.choice(list(Pace)),
                    dice.choice(CREDITS),
                ),
            )
            for _ in range(4)
        ]
        events = [
            (dice.choice(WHATS), dice.randrange(4), [dice.randrange(100) for _ in range(6)])
            for _ in range(400)
        ]
        world = World(1 + seed % 3, [0.0, 0.1, 1.0][seed % 3])
        live_through(world, openings, events)
        for client in world.clients:
            made += len(client.session.proposers)
            named += sum(kind != NOBODY for kind in client.session.proposers)
    assert named > made / 6 > 200


def live_through(
    world: World,
    openings: list[tuple[list[int], int, str, Decode]],
    events: list[tuple[str, int, list[int]]],
) -> None:
    """All events, looking at everything after each, and then to the end."""
    for index, event in enumerate(events):
        if index % 5 == 0 and openings:
            world.open(*openings.pop())
        world.happen(*event)
        for client in world.clients:
            client.check()
    world.finish()
    world.engine.step()
    assert world.engine.free_rows == world.model.rows
    for client in world.clients:
        session = client.session
        if session.end is End.MAX_TOKENS:
            assert session.length == max(client.order.end, session.prompt_length)
