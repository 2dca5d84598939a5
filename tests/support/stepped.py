"""An engine, a proposer and the way between them, stepped one event at a time: no threads, no
clock of the machine, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.order import MAX_CREDIT, End, Progress
from inference.planner.acceptance import PairStats, read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Nodes, Proposer
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.times import Times
from tests.support.exact import asked, exact_engine
from tests.support.scripted_models import VOCABULARY, Says, ScriptedModel

SAMPLING = SamplingParams()
PROMPT = [3, 1, 4, 1, 5]
CALL, FORWARD, ROUND_TRIP = 0.01, 0.03, 0.04


def progress(position: int, tokens: Sequence[int], known: int = 0, held: int = 10**6) -> Progress:
    """Progress of one forward pass. The target has all that was sent, if not said otherwise."""
    return Progress(
        position=position,
        tokens=tuple(tokens),
        forwards=1,
        model_seconds=FORWARD,
        known=known,
        held=held,
        room=64,
    )


def knowledge(times: float = 1.0) -> PairStats:
    """times: how far all that is believed is off."""
    return PairStats(
        Times({(1, 64): CALL * times}),
        Times({(1, 1): FORWARD * times, (1, 64): FORWARD * times}),
        read_acceptance(),
        ROUND_TRIP * times,
    )


def forward_seconds(rows: int, nodes: int) -> float:
    return FORWARD


def scripted_proposer(says: Says, *, times: float = 1.0, room: int = 200) -> GrowingProposer:
    draft, ticks = Draft(ScriptedModel(says, capacity=512 + room)), count()
    known = knowledge(times)
    return draft.proposer(0, known, Prices(), room=room, clock=lambda: next(ticks) * CALL * times)


class World:
    """A session of an engine, a proposer on its stream, and what is under way between them.

    tokens: that the session is asked for.  credit: tokens beyond the acknowledged one.
    """

    def __init__(
        self,
        proposer: Proposer | None,
        tokens: int,
        *,
        prompt: Sequence[int] = PROMPT,
        credit: int = MAX_CREDIT,
        params: SamplingParams = SAMPLING,
        grammars: Grammars | None = None,
    ) -> None:
        self.engine, _, _ = exact_engine(
            1,
            kinds=VOCABULARY,
            cost=forward_seconds,
            times=forward_seconds,
            sizes=(1, 2, 4, 8, 16, 32, 64),
            max_tree_nodes=64,
            grammars=grammars,
        )
        self.session = asked(self.engine, prompt, tokens, params, credit=credit)
        self.proposer, self.now, self.numbers = proposer, 0.0, 0
        self.sent: list[Nodes] = []
        self._stream, self._told = self.engine.join(self.session), list[Progress]()
        if proposer is not None:
            proposer.open(prompt, params, len(prompt) + tokens)

    @property
    def goes_on(self) -> bool:
        """Whether the text has not ended."""
        return self.session.end is End.NOT

    @property
    def forwards(self) -> int:
        return self.session.spent.forwards

    @property
    def made(self) -> list[int]:
        """What was committed beyond the prompt."""
        return self.session.tokens[self.session.prompt_length :]

    def hear(self) -> None:
        """What the last forward told reaches the proposer."""
        if self.proposer is not None and self._told:
            told = self._told.pop()
            self.proposer.on_progress(
                progress(told.position, told.tokens, told.known, told.held), self.now
            )

    def flush(self, now: float | None = None) -> Nodes | None:
        """What the proposer sends, at this time or another; it arrives at once."""
        assert self.proposer is not None
        nodes = self.proposer.flush(self.now if now is None else now, self.numbers)
        if nodes is not None:
            self.sent.append(nodes)
            self.numbers = nodes.end
            self.engine.append(self.session, self._stream, nodes)
        return nodes

    def turn(self, most: int = 64) -> None:
        """One forward over so many nodes at most, and three calls of the draft meanwhile."""
        self.hear()
        self.engine.acknowledge(self.session, self.session.length)
        before, self.session.tree_nodes = self.session.length, most
        self.engine.step()
        if self.session.length > before:
            self._told = [self.engine.progress(self.session, before, self._stream)]
        for _ in range(3):
            self.now += CALL
            if self.proposer is not None:
                self.proposer.work(self.now - CALL)
                self.flush()

    def live(self, most: int = 64) -> World:
        """Make turns until the text has ended."""
        while self.goes_on:
            self.turn(most)
        return self


@dataclass
class Numbers:
    """The numbers of a stream."""

    next: int = 0


def sent(proposer: Proposer, numbers: Numbers) -> list[Nodes]:
    """Everything that it hands over."""
    messages = list[Nodes]()
    while (nodes := proposer.flush(0.0, numbers.next)) is not None:
        numbers.next = nodes.end
        messages.append(nodes)
    return messages


def tokens_of(messages: Sequence[Nodes]) -> list[int]:
    return [token for nodes in messages for token in nodes.tokens]
