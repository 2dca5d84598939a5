"""A P-EAGLE head beside its target: the text is the target's own, and one call of the head brings
several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.backends import Ranked, Segment
from inference.backends.eagle import ParallelEagleModel
from inference.drafters.model_proposer import ROOM
from inference.engine.engine import Engine
from inference.engine.host import Host
from inference.engine.local_session import LocalSession
from inference.engine.target_rows import led_by_row
from inference.link_times import LinkTimes
from inference.model.cache import empty_cache
from inference.model.eagle import EagleHead, load_head
from inference.order import Decode
from inference.planner.acceptance import read_acceptance
from inference.planner.knowledge import Knowledge
from inference.proposer import HOST
from inference.sampling import SamplingParams
from inference.times import DraftTimes, LatencyModel
from tests.support import heads, pairs
from tests.support.clock import Clock
from tests.support.drafts import text_of
from tests.support.equality import NearTies, assert_same_text
from tests.support.exact import finish, opened
from tests.support.timed_target import FORWARD, TimedTarget

TARGET, LENGTH, TOKENS = pairs.decoder(1), pairs.SEQUENCE_LENGTH, 40
CALL = 0.001
PROMPT = pairs.prompt_of(20)[-20:]
MASK, LEVELS = 299, 4


class Calls(ParallelEagleModel):
    """A head whose calls take their time. known, behind: tokens and masks that each call ranks."""

    clock: Clock

    def __init__(self, head: EagleHead) -> None:
        super().__init__(head, rows=1, capacity=LENGTH + ROOM, max_nodes=128)
        self.known, self.behind = list[int](), list[int]()

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.clock.now += CALL
        for segment in segments if k > 1 else ():
            masks = int((segment.tokens == MASK).sum())
            self.known.append(len(segment.pick) - masks)
            self.behind.append(masks)
        return super().rank(segments, k)


class Beside:
    """An engine with a head beside its target, on a clock of the test."""

    def __init__(self, directory: Path) -> None:
        clock = Clock()
        target = TimedTarget(TARGET, rows=1, capacity=LENGTH + 64, max_nodes=64)
        self.head = Calls(load_head(directory, TARGET, LENGTH))
        target.keep_features(heads.KEPT)
        target.clock = self.head.clock = clock
        times = {(1, nodes): FORWARD for nodes in (1, 2, 4, 8, 16, 32, 64)}
        known = partial(
            Knowledge, DraftTimes({1: CALL}), LatencyModel(times), LinkTimes(), read_acceptance()
        )
        self.engine = Engine(
            target,
            sequence_length=LENGTH,
            max_tree_nodes=64,
            vocabulary=pairs.VOCABULARY,
            times=LatencyModel(times, measured=True),
            host=Host(
                self.head,
                known,
                room=ROOM,
                sequence=partial(led_by_row, target),
                clock=clock,
            ),
            clock=clock,
        )


def own_text(params: SamplingParams) -> list[int]:
    alone = LocalSession(pairs.engine(TARGET))
    return text_of(PROMPT, params, alone, Decode(len(PROMPT) + TOKENS))


@pytest.fixture(scope="module")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head of three layers, which names a seventh of the tokens."""
    config = TARGET.config
    raw = heads.raw_config(config, num_hidden_layers=3, ptd_token_id=MASK, num_depths=LEVELS)
    tensors = heads.tensors_of(config, depth=3, masked=True)
    return heads.write_head(tmp_path_factory.mktemp("useless"), raw, tensors)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head that was taught what the target says after the prompt at temperature 0."""
    config, directory = TARGET.config, tmp_path_factory.mktemp("taught")
    named = config.vocab_size
    raw = heads.raw_config(config, draft_vocab_size=named, ptd_token_id=MASK, num_depths=LEVELS)
    tensors = heads.tensors_of(config, named=named, masked=True)
    head = load_head(heads.write_head(directory, raw, tensors), TARGET, LENGTH)
    teach(head, [*PROMPT, *own_text(SamplingParams())])
    learnt = {name: one.data for name, one in head.named_parameters() if name in tensors}
    return heads.write_head(directory, raw, learnt)


def teach(head: EagleHead, text: Sequence[int], steps: int = 60) -> None:
    """Train a head to name the next tokens of a text, LEVELS at once from each place behind the
    prompt.
    """
    states = heads.states_of(TARGET, text)
    starts = torch.arange(len(PROMPT) - 1, len(text) - LEVELS)  # positions of the roots
    wanted = torch.tensor(text)[starts[:, None] + 1 + torch.arange(LEVELS)]
    learning = [one for name, one in head.named_parameters() if "embed" not in name]
    optimizer = torch.optim.AdamW(learning, lr=1e-2, weight_decay=0.0)
    for parameter in learning:
        parameter.requires_grad_(True)
    for _ in range(steps):
        named = levels_of(head, text, states, starts)
        loss = torch.nn.functional.cross_entropy(named.flatten(0, 1), wanted.flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    head.requires_grad_(False)


def levels_of(
    head: EagleHead, text: Sequence[int], states: Tensor, roots: Tensor
) -> Tensor:  # [r, LEVELS, vocabulary]
    """The head's logits at roots [r] and the masks behind each, a row for each root."""
    rows, nodes, masks = len(roots), len(text) - 1, LEVELS - 1
    learnt = head.masked_feature()
    assert learnt is not None
    tokens = torch.tensor([*text[1:], *[MASK] * masks]).expand(rows, -1)
    features = torch.cat((head.fc(states[:-1]), learnt.expand(masks, -1)))
    below = roots[:, None] + 1 + torch.arange(masks)
    positions = torch.cat((torch.arange(1, nodes + 1).expand(rows, -1), below), 1)
    tree = torch.ones(nodes + masks, nodes + masks).tril().repeat(rows, 1, 1)
    behind = torch.arange(1, nodes + 1) > roots[:, None]
    tree[:, nodes:, :nodes].masked_fill_(behind[:, None], 0)
    out = head(
        tokens,
        features.expand(rows, -1, -1),
        torch.zeros(rows, dtype=torch.int32),
        positions,
        torch.zeros(rows, 1, 1),
        tree,
        empty_cache(head.config.layer, 1, 1, torch.float32),
    )
    places = torch.cat((roots[:, None] - 1, torch.arange(nodes, nodes + masks).expand(rows, -1)), 1)
    return head.logits(out.states[torch.arange(rows)[:, None], places])


@pytest.mark.parametrize("head", ["useless", "taught"])
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(0.7, seed=3), SamplingParams(1.0, seed=4)], ids=str
)
def test_the_text_is_the_targets_own_seeded_decoding(
    head: str, params: SamplingParams, ties: NearTies, request: pytest.FixtureRequest
) -> None:
    beside = Beside(request.getfixturevalue(head))

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        order = Decode(len(prompt) + tokens, beside=True)
        return text_of(prompt, params, LocalSession(beside.engine), order)

    assert_same_text(TARGET, PROMPT, params, own_text(params), produce, ties)
    assert max(beside.head.behind) > 0
    assert set(beside.head.known) == {1}, "candidates are not ranked"


def test_one_call_brings_several_tokens(taught: Path) -> None:
    beside = Beside(taught)
    session = opened(beside.engine, PROMPT)
    beside.engine.decode(session, Decode(len(PROMPT) + TOKENS, credit=512, beside=True))
    finish(beside.engine, session)
    assert session.tokens[len(PROMPT) :] == own_text(SamplingParams())
    assert session.proposers.count(HOST) > 2 * len(beside.head.behind)
    assert session.spent.forwards < TOKENS / 2
