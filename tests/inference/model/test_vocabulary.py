"""Ranks that each see their own part of the logits choose what one rank chooses that sees all."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from compile.agreement import random_segments
from inference.backends.graphs.graph_calls import inputs_of
from inference.files.artifact import Bucket
from inference.model.checkpoints.config import parse_config
from inference.model.choice.arithmetic import ENGINES, HOST
from inference.model.choice.graph_choice import MaskInputs, Scored, choose_scored
from inference.model.choice.sampler import (
    Sampling,
    choose_drawn,
    choose_greedy,
    guess_drawn,
    guess_greedy,
    noise_table,
    score,
)
from inference.model.choice.vocabulary import VocabularyShare
from inference.model.decoder import Decoder
from inference.model.layers import Head, Layers
from inference.sampling import MAX_LOGPROBS, SamplingParams
from tests.support.fake_ranks import Group, as_rank
from tests.support.models import TINY

PARAMS = [
    SamplingParams(0.0),
    SamplingParams(1.0, seed=3),
    SamplingParams(0.7, top_k=40, seed=2**63 - 1),
    SamplingParams(1.3, top_p=0.8, seed=5),
    SamplingParams(1.0, top_k=256, top_p=0.99, seed=6),
]
NODES = 4
Answer = Callable[..., Tensor]  # of logits and noise [B, P, V], and the share


def on_ranks(ranks: int, answer: Answer, *tables: Tensor) -> list[Tensor]:
    """What each rank answers from its part of the tables [..., V]."""
    group = Group(ranks)

    def one(rank: int) -> Tensor:
        mine = VocabularyShare(ranks, lambda part: torch.cat(group.exchange(part)))
        with as_rank(rank, group):
            return answer(*(table.chunk(ranks, -1)[rank] for table in tables), mine)

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def logits_of(kind: str, vocabulary: int) -> Tensor:
    spread = torch.randn(len(PARAMS), NODES, vocabulary, generator=torch.manual_seed(7))
    if kind == "ties":  # whole numbers: many equal scores, on both sides of every border
        return (spread * 2).round()
    if kind == "flat":
        return torch.zeros_like(spread)
    return spread * 3


sampling = Sampling.of(PARAMS, torch.device("cpu"))
ANSWERS: dict[str, Answer] = {
    "greedy": lambda logits, drawn, share: choose_greedy(logits, share),
    "drawn": lambda logits, drawn, share: choose_drawn(logits, sampling, drawn, ENGINES, share),
    "guessed": lambda logits, drawn, share: guess_greedy(logits, 1, ENGINES, share),
    "drafted": lambda logits, drawn, share: guess_drawn(logits, sampling, drawn, 1, ENGINES, share),
}


@pytest.mark.parametrize(
    ("name", "kind"),  # which of several equal scores is drafted last is open
    [
        *((name, "spread") for name in ANSWERS),
        *((name, kind) for name in ("greedy", "drawn") for kind in ("ties", "flat")),
    ],
)
def test_ranks_choose_what_a_rank_with_all_logits_chooses(name: str, kind: str) -> None:
    for vocabulary in (60, 1200):
        logits = logits_of(kind, vocabulary)
        first = torch.full((len(PARAMS), 1), 9, dtype=torch.int32)
        drawn = noise_table(sampling, first, NODES, torch.arange(vocabulary, dtype=torch.int32))
        expected = ANSWERS[name](logits, drawn, VocabularyShare())
        for ranks in (2, 4):
            for answer in on_ranks(ranks, ANSWERS[name], logits, drawn):
                assert answer.equal(expected)


@pytest.mark.parametrize("kind", ["spread", "ties", "flat"])
def test_ranks_adjust_choose_and_score_as_a_rank_with_all_logits_does(kind: str) -> None:
    """Scores agree to the last digits: each rank sums the mass of its own ids first."""
    vocabulary = 1280
    logits = logits_of(kind, vocabulary)
    ids = torch.arange(vocabulary, dtype=torch.int32)
    drawn = noise_table(sampling, torch.full((len(PARAMS), 1), 9), NODES, ids)
    busy = Bucket(len(PARAMS), NODES, 40, NODES, NODES, True, 40, words=vocabulary // 32)
    inputs = inputs_of(busy, random_segments(busy, vocabulary, 9, 40, 3))  # 101 ids or more each
    masks = MaskInputs(*(inputs[name] for name in MaskInputs._fields))

    def answer(part: Tensor, noise: Tensor, mine: Tensor, share: VocabularyShare) -> Tensor:
        adjusted = masks.adjusted(part, mine, share, ENGINES)
        return choose_scored(adjusted, sampling, noise, masks.asked, ENGINES, share).joined()

    adjusted = masks.adjusted(logits, ids, VocabularyShare(), HOST)
    expected = choose_scored(adjusted, sampling, drawn, masks.asked)
    tokens = torch.where(masks.asked < 0, expected.chosen, masks.asked)
    told = score(adjusted, sampling, tokens, MAX_LOGPROBS)
    close = torch.testing.assert_close
    close((expected.scores.values, expected.scores.likeliest), (told.values, told.likeliest))
    for ranks in (2, 4):
        for joined in on_ranks(ranks, answer, logits, drawn, ids):
            scored = Scored.parted(joined)
            assert scored.chosen.equal(expected.chosen)
            close(scored.scores.values, told.values)
            close(scored.scores.likeliest, told.likeliest)
            assert kind != "spread" or scored.scores.ids.equal(told.ids)


def test_ranks_exchange_candidates_and_not_their_logits() -> None:
    """The numbers that a rank sends for a node, at a vocabulary of real width."""
    sent: list[int] = []

    def gather(part: Tensor) -> Tensor:
        sent.append(part.shape[-1])
        return part.repeat(2, 1, 1)

    logits = torch.randn(len(PARAMS), 1, 64_128)
    choose_drawn(logits, sampling, torch.zeros_like(logits), ENGINES, VocabularyShare(2, gather))
    assert sum(sent) == 3 * 264 + 2 + 4  # scores, ids and noise; maximum and mass; two bests


def test_an_id_that_pads_a_ranks_share_is_never_chosen() -> None:
    """61 ids are 31 for each of two ranks: the second rank's last id is none."""
    config, ids = parse_config(TINY | {"vocab_size": 62}), nn.Linear(1, 31, bias=False)
    ids.weight.data = torch.arange(31.0, 62.0)[:, None]

    def half(inputs: int, outputs: int, bias: bool) -> Head:
        head = Head(inputs, 31, False)
        head.weight.data.zero_()
        return head

    second = Decoder(config, 8, 61, Layers(head=half, ids=lambda _: ids))
    assert second.token_ids().tolist() == list(range(31, 62))
    logits = second.logits(torch.ones(1, 2, config.hidden_size))
    assert (logits[..., :-1] == 0).all()
    assert (logits[..., -1] < -1e29).all()
