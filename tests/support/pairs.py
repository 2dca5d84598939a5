"""Tiny random targets with drafts that often agree or never do, and texts generated with them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import llguidance
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inference.backends.eager import EagerModel
from inference.drafters.growing_proposer import Draft, GrowingProposer
from inference.drafters.round_proposer import BestFirst, Policy, RoundProposer
from inference.engine.engine import Engine
from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import Step, TargetSession, decode
from inference.model.checkpoints.config import ModelConfig, parse_config
from inference.model.decoder import Decoder
from inference.order import Decode, Pace
from inference.planner.acceptance import PairStats, read_acceptance
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.text.grammar import Grammars
from inference.times import Times
from tests.support.equality import NearTies, assert_same_text
from tests.support.models import random_decoder
from tests.support.oracles import RuleOracle

VOCABULARY = 290
SEQUENCE_LENGTH = 512

STOP = 0
"""The id that ends a text."""


def tokenizer() -> Tokenizer:
    """The end of a text, the bytes, and pairs of letters."""
    pairs = [(first, second) for first in "abcdef" for second in "abcdef"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = pairs[: VOCABULARY - 1 - len(letters)]
    tokens = ["<end>", *letters, *("".join(pair) for pair in merges)]
    rules = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens(["<end>"])
    return rules


def grammars() -> Grammars:
    return Grammars(tokenizer().to_str(), VOCABULARY, [STOP])


def rule_oracle(begin: int, params: SamplingParams) -> RuleOracle:
    reader = llguidance.LLTokenizer(tokenizer().to_str(), n_vocab=VOCABULARY, eos_token=[STOP])
    return RuleOracle(reader, begin, params)


def raw_config(layers: int = 2) -> dict[str, Any]:
    """config.json of a tiny Llama; its vocabulary is padded beyond the tokenizer's."""
    return {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": SEQUENCE_LENGTH,
    }


def config(layers: int = 2) -> ModelConfig:
    return parse_config(raw_config(layers))


def decoder(seed: int, layers: int = 2) -> Decoder:
    return random_decoder(
        config(layers), positions=SEQUENCE_LENGTH, vocabulary=VOCABULARY, seed=seed
    )


def perturbed(seed: int, amount: float) -> Decoder:
    """The decoder of this seed with noise on every weight: a draft that agrees often."""
    return nudged(decoder(seed), amount, seed + 1)


def nudged(decoder: Decoder, amount: float = 0.03, seed: int = 3) -> Decoder:
    draft, generator = copy.deepcopy(decoder), torch.Generator().manual_seed(seed)
    for parameter in draft.parameters():
        parameter.data += amount * torch.randn(parameter.shape, generator=generator)
    return draft


def engine(
    target: Decoder,
    rows: int = 2,
    max_tree_nodes: int = 64,
    clock: Callable[[], float] = time.perf_counter,
    rules: Grammars | None = None,
) -> Engine:
    model = EagerModel(
        target, rows=rows, capacity=SEQUENCE_LENGTH + max_tree_nodes, max_nodes=max_tree_nodes
    )
    return Engine(
        model,
        sequence_length=SEQUENCE_LENGTH,
        max_tree_nodes=max_tree_nodes,
        vocabulary=VOCABULARY,
        clock=clock,
        grammars=rules,
    )


def prompt_of(length: int) -> list[int]:
    """Random tokens, the same for the same length."""
    tokens: list[int] = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
    return tokens


def proposers_of(draft: str, pace: Pace) -> list[Proposer]:
    """A draft that is often right ("close"), never ("unrelated"), or none; for either pace."""
    if draft == "none":
        return []
    model = perturbed(1, 0.02) if draft == "close" else decoder(2)
    return [rounds(model, BestFirst(12, 4)) if pace is Pace.WAIT else growing(model)]


def growing(
    draft: Decoder | None,
    *,
    copies: bool = False,
    grammars: Grammars | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> GrowingProposer:
    """A tree that grows by a draft's calls, by copied text, or by both."""
    known = Draft(None if draft is None else _model(draft), grammars=grammars)
    return known.proposer(0, knowledge(), Prices(), clock=clock, copies=copies)


copying = partial(growing, None, copies=True)


def knowledge(call: float = 0.002, nodes: int = 1) -> PairStats:
    """Calls of so many seconds beside forwards of 10 ms, with up to so many nodes."""
    target = Times({(1, 1): 0.01, (1, nodes): 0.01})
    return PairStats(Times({(1, 64): call}), target, read_acceptance())


def rounds(draft: Decoder, policy: Policy, grammars: Grammars | None = None) -> RoundProposer:
    known = Draft(_model(draft), grammars=grammars)
    assert known.model is not None, "it ranks nodes"
    return RoundProposer(known.model, policy, room=16, make_rule=known.make_rule)


def text_of(
    prompt: Sequence[int],
    params: SamplingParams,
    session: TargetSession,
    order: Decode,
    proposers: Sequence[Proposer] = (),
    between: Callable[[Step], None] = lambda step: None,
) -> list[int]:
    """All tokens; `between` hears of each step."""
    text: list[int] = []
    with closing(session):
        for step in decode(prompt, params, session, order, proposers):
            text += step.tokens
            between(step)
    return text


def alone(
    session: TargetSession, prompt: Sequence[int], params: SamplingParams, tokens: int
) -> list[int]:
    return text_of(prompt, params, session, Decode(len(prompt) + tokens))


def assert_drafted_text(
    engine: Engine,
    target: Decoder,
    prompt: Sequence[int],
    params: SamplingParams,
    own: list[int],
    ties: NearTies,
) -> None:
    """An engine that drafts by itself writes the target's own text."""

    def produce(prompt: Sequence[int], tokens: int) -> list[int]:
        order = Decode(len(prompt) + tokens, beside=True)
        return text_of(prompt, params, LocalSession(engine), order)

    assert_same_text(target, prompt, params, own, produce, ties)


def speculated(
    session: TargetSession,
    proposer: Proposer,
    prompt: Sequence[int],
    params: SamplingParams,
    tokens: int,
    between: Callable[[Step], None] = lambda step: None,
) -> list[int]:
    """The text with a proposer. The target waits for one that makes whole trees."""
    pace = Pace.WAIT if isinstance(proposer, RoundProposer) else Pace.GO_ON
    order = Decode(len(prompt) + tokens, pace=pace)
    return text_of(prompt, params, session, order, [proposer], between)


def _model(draft: Decoder) -> EagerModel:
    return EagerModel(draft, rows=1, capacity=SEQUENCE_LENGTH + 512, max_nodes=128)
