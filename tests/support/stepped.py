"""An engine, its proposers and the way between them, stepped one event at a time: no threads, no
clock of the machine, no network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.grammar import Grammars
from inference.order import MOST_CREDIT, End, Progress
from inference.planner.acceptance import Knowledge
from inference.planner.acceptance_file import read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Nodes, Notice, Proposer
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.support.exact import asked, exact_engine
from tests.support.scripted_models import VOCABULARY, Says, ScriptedModel

SAMPLING = SamplingParams()
PROMPT = [3, 1, 4, 1, 5]
CALL, FORWARD, ROUND_TRIP = 0.01, 0.03, 0.04
QUIET = Notice(0.0, FORWARD, 0, 10**6, 64)
"""It holds whatever was sent."""


def knowledge(times: float = 1.0) -> Knowledge:
    """times: how far all that is believed is off."""
    return Knowledge(
        DraftTimes({1: CALL * times}),
        LatencyModel({(1, 1): FORWARD * times, (1, 64): FORWARD * times}),
        read_acceptance(),
        ROUND_TRIP * times,
    )


def forward_seconds(rows: int, nodes: int) -> float:
    return FORWARD


def scripted_proposer(
    says: Says, *, times: float = 1.0, prices: Prices | None = None, room: int = 200
) -> GrowingProposer:
    model = ScriptedModel(says, capacity=512 + room)
    ticks = iter(range(10**9))
    return Draft(model).proposer(
        0, knowledge(times), prices or Prices(), room=room, clock=lambda: next(ticks) * CALL * times
    )


@dataclass
class Stream:
    """A way to the target: messages in order, of one or more proposers."""

    number: int
    messages: deque[Nodes] = field(default_factory=deque)
    numbers: int = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers - 1


class World:
    """Proposers on streams of one session of an engine, and what is under way between them.

    tokens: that the session is asked for.  credit: tokens beyond the acknowledged one.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        tokens: int,
        *,
        streams: Sequence[int] = (0,),
        prompt: Sequence[int] = PROMPT,
        credit: int = MOST_CREDIT,
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
        self.proposers, self.now = proposers, 0.0
        self.streams = {one: self._joined() for one in set(streams)}
        self.stream_of = list(streams)
        self.inboxes: list[deque[tuple[int, Progress]]] = [deque() for _ in proposers]
        self.sent: list[tuple[int, Nodes]] = []
        for proposer in proposers:
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

    def forward(self, most: int = 64) -> None:
        """One forward over so many nodes at most, the root among them, where it may be made."""
        self.now += FORWARD
        before, self.session.tree_nodes = self.session.length, most
        self.engine.step()
        if self.session.length > before:
            for inbox, one in zip(self.inboxes, self.stream_of, strict=True):
                stream = self.streams[one].number
                inbox.append((stream, self.engine.progress(self.session, before, stream)))

    def hear(self, index: int, messages: int = 1) -> None:
        """So many messages reach a proposer as one."""
        inbox = self.inboxes[index]
        told = [inbox.popleft() for _ in range(min(messages, len(inbox)))]
        if told:
            tokens = [token for _, one in told for token in one.tokens]
            stream, last = told[-1]
            known = last.known if stream == self._stream(index).number else 0
            notice = Notice(self.now, FORWARD, known, last.held, 64)
            self.proposers[index].hear(told[0][1].position, tokens, self.now, notice)

    def work(self, index: int) -> None:
        self.now += CALL
        self.proposers[index].work(self.now)

    def flush(self, index: int, now: float | None = None) -> Nodes | None:
        """What the proposer sends, at this time or another."""
        stream = self._stream(index)
        at = self.now if now is None else now
        nodes = self.proposers[index].flush(at, stream.next_number)
        if nodes is not None:
            stream.messages.append(nodes)
            self.sent.append((stream.number, nodes))
        return nodes

    def deliver(self, index: int, *, lost: bool = False, twice: bool = False) -> None:
        """The oldest message of a proposer's stream arrives, or does not."""
        stream = self._stream(index)
        if stream.messages:
            nodes = stream.messages.popleft()
            for _ in range(0 if lost else 1 + twice):
                self.engine.append(self.session, stream.number, nodes)

    def reconnect(self, index: int) -> None:
        """The proposer's stream breaks; what was under way may still come, and is of no use."""
        broken, old = self.stream_of[index], self._stream(index)
        self.engine.leave(self.session, old.number)
        self.streams[broken] = self._joined()
        for nodes in old.messages:
            self.engine.append(self.session, old.number, nodes)
        for other, stream in enumerate(self.stream_of):
            if stream == broken:
                self.proposers[other].hear(0, (), self.now, None)

    def turn(self, most: int = 64) -> None:
        """One forward, as on a good day: three calls of each draft meanwhile, nothing is lost."""
        for index in range(len(self.proposers)):
            self.hear(index, len(self.inboxes[index]))
        self.engine.acknowledge(self.session, self.session.length)
        began = self.now
        self.forward(most)
        self.now = began
        told = [inbox.pop() for inbox in self.inboxes if inbox]
        for _ in range(3):
            self.now += CALL
            for index in range(len(self.proposers)):
                self.proposers[index].work(self.now - CALL)
                self.flush(index)
            for index in range(len(self.proposers)):
                while self._stream(index).messages:
                    self.deliver(index)
        for inbox, one in zip(self.inboxes, told, strict=False):
            inbox.append(one)

    def _stream(self, index: int) -> Stream:
        return self.streams[self.stream_of[index]]

    def _joined(self) -> Stream:
        return Stream(self.engine.join(self.session))


def sent(proposer: Proposer, numbers: Iterator[int]) -> list[Nodes]:
    """Everything that it hands over at a time at which nothing is late."""
    messages = list[Nodes]()
    while (nodes := proposer.flush(0.0, lambda: next(numbers))) is not None:
        messages.append(nodes)
    return messages


def tokens_of(messages: Sequence[Nodes]) -> list[int]:
    return [one.token for nodes in messages for one in nodes.proposals]
