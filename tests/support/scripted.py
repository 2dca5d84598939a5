"""Drafts that follow a script, a grammar over their tokens, and an engine and a proposer that are
stepped one event at a time: no weights, no threads, no clock of the machine, no network.
"""

from __future__ import annotations

import json
import string
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers

from inference.backends import Chosen, Ranked, Segment
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.order import MAX_CREDIT, End, Progress
from inference.planner.acceptance import PairStats, read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Nodes, Proposer
from inference.sampling import Grammar, GrammarKind, SamplingParams
from inference.text.grammar import Grammars
from inference.times import Times
from tests.support import exact
from tests.support.exact import (
    GREEDY,
    HandModel,
    RowTokens,
    asked,
    exact_engine,
    nearest,
    next_token,
)

BASE = -1
"""Number of the parent that stands for the token at a message's base."""


class Candidate(NamedTuple):
    number: int
    parent: int  # its number, or BASE
    token: int
    chance: float = 0.9


def nodes_of(
    base: int, candidates: Sequence[tuple[int, int, int, float]], proposer: int = 0
) -> Nodes:
    """The message of candidates with consecutive numbers."""
    numbers, above, tokens, chances = zip(*candidates, strict=True) if candidates else [()] * 4
    first = numbers[0] if numbers else 0
    assert list(numbers) == list(range(first, first + len(numbers)))
    back = [0 if at == BASE else number - at for number, at in zip(numbers, above, strict=True)]
    return Nodes(base, first, back, tokens, chances, proposer)


def candidates_of(nodes: Nodes) -> list[Candidate]:
    columns = zip(nodes.parents, nodes.tokens, nodes.chances, strict=True)
    return [
        Candidate(number, number - back if back else BASE, token, chance)
        for number, (back, token, chance) in enumerate(columns, nodes.first)
    ]


VOCABULARY = 40

Prefix = tuple[int, ...]
Says = Callable[[Prefix], tuple[list[int], list[float]]]
"""The children of a prefix, best first, with their scores (eight of each)."""


def dice(prefix: Sequence[int], seed: int) -> int:
    """A number below 2**32 that depends on every token."""
    return zlib.crc32(np.array(prefix, dtype=np.int32).tobytes(), seed)


def target_token(prefix: Sequence[int]) -> int:
    """What the target of tests/support/exact.py says after these tokens."""
    return next_token(np.array(prefix, dtype=np.int64), GREEDY, VOCABULARY)


def own_text(prompt: Sequence[int], tokens: int) -> list[int]:
    """What the target says alone."""
    return exact.own_text(prompt, tokens, kinds=VOCABULARY)


def _after(token: int) -> list[int]:
    """Other tokens: never this one."""
    return [(token + step) % VOCABULARY for step in range(1, 9)]


def perfect(prefix: Prefix) -> tuple[list[int], list[float]]:
    token = target_token(prefix)
    return [token, *_after(token)[:7]], [-0.02, *[-5.0 - rank for rank in range(7)]]


def useless(prefix: Prefix) -> tuple[list[int], list[float]]:
    return _after(target_token(prefix)), [-1.5 - 0.3 * rank for rank in range(8)]


def skilled(params: SamplingParams, kinds: int, *, right: int) -> Says:
    """A draft that names the target's token first in so many of 100 cases, second in half of the
    others, and is less sure where it is wrong.
    """

    def says(prefix: tuple[int, ...]) -> tuple[list[int], list[float]]:
        token = next_token(np.array(prefix, dtype=np.int64), params, kinds)
        others = [(token + step) % max(kinds, 9) for step in range(1, 9)]
        chance = dice(prefix, 11) % 100
        scores = [-0.5 if chance < right else -1.0, *[-2.0 - 0.5 * rank for rank in range(7)]]
        if chance < right:
            return [token, *others[:7]], scores
        if chance < (100 + right) // 2 and right:
            return [others[0], token, *others[1:7]], scores
        return others, scores

    return says


disagreeing = skilled(GREEDY, VOCABULARY, right=70)


def ruled(
    named: list[int], scores: list[float], allowed: NDArray[np.bool_]
) -> tuple[list[int], list[float]]:
    """What a script says under a rule: the nearest tokens that are allowed, then excluded ones."""
    kept = list(dict.fromkeys(nearest(token, allowed) for token in named))
    excluded = [token for token in np.flatnonzero(~allowed).tolist() if token not in kept]
    missing = len(named) - len(kept)
    return kept + excluded[:missing], scores[: len(kept)] + [-1e9] * missing


class ScriptedModel(HandModel):
    """A Model that says what a script says."""

    def __init__(
        self, says: Says, *, rows: int = 1, capacity: int = 1200, max_nodes: int = 64
    ) -> None:
        self.rows, self.capacity, self.max_nodes = rows, capacity, max_nodes
        self.calls = 0
        self._says = says
        self._held = RowTokens(rows, capacity)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        return [Chosen(ranked.ids[:, 0]) for ranked in self.rank(segments, 1)]

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.calls += 1
        return [self._rank(segment, k) for segment in segments]

    def _rank(self, segment: Segment, k: int) -> Ranked:
        ids, scores = list[list[int]](), list[list[float]]()
        allowed = None if segment.rule is None else segment.rule().allowed
        for node, text in enumerate(self._held.seen(segment)):
            row = exact.allowed_ids(allowed, node, VOCABULARY)
            named, given = ruled(*self._says(tuple(text.tolist())), row)
            ids.append(named[:k])
            scores.append(given[:k])
        return Ranked(np.array(ids, dtype=np.int32), np.array(scores, dtype=np.float32))


CHARACTERS = '{}":,[] ' + string.ascii_lowercase[:-1] + "012345"
END = len(CHARACTERS)

SCHEMA = {
    "type": "array",
    "minItems": 20,
    "items": {
        "type": "object",
        "properties": {
            "name": {"enum": ["ab", "abc", "ca", "dab"]},
            "count": {"type": "integer"},
            "next": {"type": "boolean"},
        },
        "required": ["name", "count", "next"],
        "additionalProperties": False,
    },
}
RULED = SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA)))
"""Greedy sampling of a text with far more tokens than a test makes."""


def scripted_grammars() -> Grammars:
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = [level.pre_tokenize_str(one)[0][0] for one in CHARACTERS]
    rules = tokenizers.Tokenizer(
        models.BPE(vocab={one: at for at, one in enumerate(letters)}, merges=[])
    )
    rules.pre_tokenizer = level
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens(["<|end|>"])
    return Grammars(rules.to_str(), END + 1, [END])


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
        params: SamplingParams = GREEDY,
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
