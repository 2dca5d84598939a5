"""Tiny random targets with a draft that is a little off, or has nothing to do with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inference.backends import Masks
from inference.backends.eager import EagerModel
from inference.engine.engine import Engine
from inference.model.checkpoints.config import ModelConfig, parse_config
from inference.model.decoder import Decoder
from inference.text.grammar import Grammars
from tests.support.models import random_decoder

VOCABULARY = 290
SEQUENCE_LENGTH = 512
MASKS = Masks(VOCABULARY + 5, 3)
"""An id that the model has and the tokenizer has not."""


STOP = 0
"""The id that ends a text."""


def tokenizer() -> Tokenizer:
    """The end of a text, the bytes, and pairs of letters."""
    pairs = list(product("abcdef", repeat=2))
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
    model = decoder(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        parameter.data += amount * torch.randn(parameter.shape, generator=generator)
    return model


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
