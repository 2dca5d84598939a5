"""A target that can be computed by hand: its choice is a hash of everything that a node sees.

Its cache holds tokens and positions in place of keys, so a wrong slot, mask or position is another
text or an error. Its time is a clock that each forward moves on by what the test says it takes.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.backends import Chosen, LogProbs, Ranked, Scoring, Segment
from inference.engine.colocated.drafter import ColocatedDrafter
from inference.engine.engine import Engine
from inference.engine.sessions.session import Session
from inference.order import Decode, End, TokenLogProb
from inference.proposer import Nodes
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.times import Times
from inference.token_rule import Adjustment, plain_rule
from inference.tree.token_tree import IntArray, TokenTree
from tests.support.clock import Clock

VOCABULARY = 1000
FAULTY = 999
"""A token that makes the model fail, and that it never chooses."""

Cost = Callable[[int, int], float]
"""Seconds of a forward of so many rows and nodes of each."""

GREEDY = SamplingParams()


def free(rows: int, nodes: int) -> float:
    """A forward takes 10 ms, whatever is in it."""
    return 0.010


def next_token(prefix: NDArray[np.int64], params: SamplingParams, kinds: int) -> int:
    """What the target says after these tokens: one of `kinds`, by the seed at T > 0."""
    seed = 0 if params.greedy else params.seed
    return zlib.crc32(prefix.tobytes(), seed) % kinds


def prompt_of(seed: int, length: int = 12) -> list[int]:
    """A random prompt without the tokens that fail."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, FAULTY, length).tolist()
    return tokens


def allowed_ids(allowed: IntArray | None, node: int, kinds: int) -> NDArray[np.bool_]:  # [kinds]
    """Which tokens a rule's set of each node allows at this one."""
    if allowed is None:
        return np.ones(kinds, dtype=np.bool_)
    bits = np.unpackbits(allowed[node].view(np.uint8), bitorder="little")
    return bits[:kinds].astype(np.bool_)


def nearest(token: int, allowed: NDArray[np.bool_]) -> int:
    """The token itself, else the next one in a circle that is allowed."""
    if allowed[token]:
        return token
    return (token + int(np.roll(allowed, -token).argmax())) % len(allowed)


def ruled_token(token: int, rule: Adjustment, node: int, kinds: int) -> int:
    """The token in whose place a rule puts another: it depends on all that the rule changes."""
    nodes, *changes = rule.changes(VOCABULARY)
    mine = np.flatnonzero(nodes == node)
    mine = mine[changes[0][mine].argsort()]
    if len(mine):
        token = (token + zlib.crc32(b"".join(part[mine].tobytes() for part in changes))) % kinds
    return nearest(token, allowed_ids(rule.allowed, node, kinds))


ROOT = TokenTree.chain([0])


def own_text(
    prompt: Sequence[int],
    count: int,
    params: SamplingParams = GREEDY,
    kinds: int = FAULTY,
    grammars: Grammars | None = None,
) -> list[int]:
    """The target's own decoding."""
    rule = plain_rule(prompt, params, VOCABULARY) if params.adjusts else None
    if grammars is not None:
        rule = grammars.rule(prompt, params)
    tokens = np.array([*prompt, *[0] * count], dtype=np.int64)
    for end in range(len(prompt), len(tokens)):
        token = next_token(tokens[:end], params, kinds)
        if rule is not None:
            token = ruled_token(token, rule.adjust(ROOT, [0]), 0, kinds)
            rule.commit([token])
        tokens[end] = token
    made: list[int] = tokens[len(prompt) :].tolist()
    return made


def score(prefix: NDArray[np.int64], token: int) -> float:
    """The log-probability of a token after these, exact in 32 bits."""
    return -(zlib.crc32(prefix.tobytes(), token) % 4096) / 64


def scores(
    prefix: NDArray[np.int64], token: int, likeliest: int, kinds: int
) -> tuple[float, tuple[int, ...], tuple[float, ...]]:
    """The log-probability of a token, and of so many others."""
    others = tuple((token + step) % kinds for step in range(likeliest))
    return score(prefix, token), others, tuple(score(prefix, other) for other in others)


def own_scores(tokens: Sequence[int], first: int, likeliest: int, kinds: int) -> list[TokenLogProb]:
    """Log-probabilities of a text's tokens from one on."""
    text = np.array(tokens, dtype=np.int64)
    places = range(first, len(text))
    return [TokenLogProb(*scores(text[:at], int(text[at]), likeliest, kinds)) for at in places]


class RowTokens:
    """What rows hold in place of keys: the token and the position in each slot."""

    def __init__(self, rows: int, capacity: int) -> None:
        self._tokens, self._positions = np.full((2, rows, capacity), -1, dtype=np.int64)

    def seen(self, segment: Segment) -> list[NDArray[np.int64]]:
        """Write a segment's nodes. Return the tokens that each picked node sees, in order."""
        tokens, positions = self._tokens[segment.row], self._positions[segment.row]
        tokens[segment.slots], positions[segment.slots] = segment.tokens, segment.positions
        texts = list[NDArray[np.int64]]()
        contexts = [np.flatnonzero(context) for context in segment.context]
        for node in segment.pick.tolist():
            new = segment.slots[segment.tree_mask[node]]
            slots = np.concatenate([contexts[min(node, len(contexts) - 1)], new])
            slots = slots[positions[slots].argsort()]
            wanted = np.arange(int(segment.positions[node]) + 1)
            assert np.array_equal(positions[slots], wanted), "a gap, or a key too many"
            texts.append(tokens[slots])
        return texts

    def copy(self, source: int, target: int, slots: int) -> None:
        for held in (self._tokens, self._positions):
            held[target, :slots] = held[source, :slots]


class HandModel:
    """A Model without weights. sizes: nodes that its calls are padded to"""

    max_nodes, masks, branches = 64, True, True
    sizes: Sequence[int] = ()

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        raise NotImplementedError

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, next((size for size in self.sizes if size >= nodes), nodes)

    def copy_row(self, source: int, target: int, slots: int) -> None:
        raise NotImplementedError


class Exact(HandModel):
    """A target.

    kinds: of tokens that it chooses among; few of them make guesses come true.
    calls: rows of each forward, and nodes of the largest of them.
    """

    def __init__(
        self,
        rows: int,
        clock: Clock,
        *,
        capacity: int = 2000,
        kinds: int = FAULTY,
        cost: Cost = free,
        sizes: Sequence[int] = (),
    ) -> None:
        self.rows, self.capacity, self.kinds = rows, capacity, kinds
        self.calls: list[tuple[int, int]] = []
        self.during: Callable[[], object] | None = None
        self.cost, self._clock, self.sizes = cost, clock, sizes
        self._held = RowTokens(rows, capacity)

    def choose(self, segments: Sequence[Segment]) -> list[Chosen]:
        nodes = max(len(segment.tokens) for segment in segments)
        self.calls.append((len(segments), nodes))
        self._clock.now += self.cost(*self.padded(len(segments), nodes))
        if self.during is not None:
            self.during()
        return [self._chosen(segment) for segment in segments]

    def copy_row(self, source: int, target: int, slots: int) -> None:
        self._held.copy(source, target, slots)

    def _chosen(self, segment: Segment) -> Chosen:
        if FAULTY in segment.tokens:
            raise RuntimeError("a private reason")
        texts, kinds = self._held.seen(segment), self.kinds
        chosen = [next_token(text, segment.params, kinds) for text in texts]
        if segment.rule is not None:
            rule = segment.rule()
            chosen = [ruled_token(token, rule, node, kinds) for node, token in enumerate(chosen)]
        logprobs = segment.scoring and self._scores(segment.scoring, texts, chosen)
        return Chosen(np.array(chosen, dtype=np.int32), logprobs)

    def _scores(
        self, scoring: Scoring, texts: Sequence[NDArray[np.int64]], chosen: Sequence[int]
    ) -> LogProbs:
        tokens = chosen if scoring.of is None else scoring.of.tolist()
        pairs = zip(texts, tokens, strict=True)
        rows = [scores(text, token, scoring.likeliest, self.kinds) for text, token in pairs]
        values, ids, likeliest = (np.array(part) for part in zip(*rows, strict=True))
        return LogProbs(values.astype(np.float32), ids.astype(np.int32), likeliest)


def exact_engine(
    rows: int = 2,
    *,
    kinds: int = FAULTY,
    cost: Cost = free,
    sizes: Sequence[int] = (),
    sequence_length: int = 1500,
    max_tree_nodes: int = 32,
    waiting: int = 64,
    times: Cost | None = None,
    clock: Clock | None = None,
    drafter: ColocatedDrafter | None = None,
    grammars: Grammars | None = None,
) -> tuple[Engine, Exact, Clock]:
    """An engine whose time is a Clock. times: what it believes that forwards take, to begin with;
    None where it measures them.
    """
    clock = clock or Clock()
    model = Exact(rows, clock, kinds=kinds, cost=cost, sizes=sizes)
    shapes = [(row, node) for row in range(1, rows + 1) for node in sizes or (1, 2, 4, 8, 16, 32)]
    engine = Engine(
        model,
        sequence_length=sequence_length,
        max_tree_nodes=max_tree_nodes,
        vocabulary=VOCABULARY,
        waiting=waiting,
        times=times and Times({one: times(*one) for one in shapes}, measured=True),
        drafter=drafter,
        grammars=grammars,
        clock=clock,
    )
    return engine, model, clock


def opened(
    engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY, tenant: str = ""
) -> Session:
    """A session whose prompt is prefilled."""
    session, future = engine.open(prompt, params, tenant=tenant)
    engine.finish(future)
    future.result(0)
    return session


def finish(engine: Engine, *sessions: Session) -> None:
    """Make forwards until these texts have ended; their clients read at once."""
    while any(one.end is End.NOT for one in sessions):
        assert engine.step(), "somebody can go on"
        for one in sessions:
            engine.acknowledge(one, one.length)


def asked(
    engine: Engine,
    prompt: Sequence[int],
    tokens: int,
    params: SamplingParams = GREEDY,
    tenant: str = "",
    **changes: Any,
) -> Session:
    """A session that is to be decoded by so many tokens, as if its client always had read all."""
    session = opened(engine, prompt, params, tenant)
    order = Decode(len(prompt) + tokens, **{"credit": 512, **changes})
    engine.decode(session, order)
    return session


def together(
    engine: Engine, prompts: Iterable[Sequence[int]], tokens: int, **changes: Any
) -> list[Session]:
    """The same for several sessions, none of which begins before all are open."""
    sessions = [opened(engine, prompt) for prompt in prompts]
    for session in sessions:
        order = Decode(session.length + tokens, **{"credit": 512, **changes})
        engine.decode(session, order)
    return sessions


def text_of(session: Session) -> list[int]:
    """What was committed beyond the prompt."""
    return session.tokens[session.prompt_length :]


def chain(
    base: int, tokens: Iterable[int], chance: float = 0.9, first: int = 0, proposer: int = 0
) -> Nodes:
    """A line of nodes below the committed token at `base`."""
    ids = list(tokens)
    parents = [min(index, 1) for index in range(len(ids))]
    return Nodes(base, first, parents, ids, [chance] * len(ids), proposer)


@contextmanager
def running(engine: Engine) -> Iterator[None]:
    """Its forwards are made by a thread, as in a server."""
    stopped = threading.Event()
    thread = threading.Thread(target=engine.run, args=(stopped,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        engine.stop(stopped)
        thread.join(20)
        assert not thread.is_alive()


def run_dry(engine: Engine) -> None:
    """Make forwards as long as there are any to make."""
    while engine.step():
        pass
