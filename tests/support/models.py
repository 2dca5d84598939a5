"""Tiny models, checkpoints that are written without `transformers`, and random calls."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from inference.backends import Model, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.model.checkpoints.checkpoint import load_decoder
from inference.model.checkpoints.config import ModelConfig, parse_config
from inference.model.decoder import Decoder
from inference.model.layers import WHOLE, Layers
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from inference.token_rule import Adjustment
from outrider.models.found_model import EMBEDDED

GREEDY = SamplingParams()
SAMPLINGS = [
    GREEDY,
    SamplingParams(0.7, seed=11),
    SamplingParams(1.0, seed=2**62 + 5),
    SamplingParams(1.0, top_p=0.9, seed=13).on_the_wire(),
    SamplingParams(0.7, top_k=20, min_p=0.125, seed=14).on_the_wire(),
]
"""Each way to choose: none of them is cut in the first three."""

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def random_decoder(config: ModelConfig, *, positions: int, vocabulary: int, seed: int) -> Decoder:
    """A float32 Decoder with random weights, which disagrees with every other one."""
    decoder = Decoder(config, positions, vocabulary)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in decoder.named_parameters():
        spread = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data = 1 + spread if "norm" in name else spread
    return decoder.requires_grad_(False).eval()


def tiny_decoder(seed: int = 1, vocabulary: int = 61, **overrides: Any) -> Decoder:
    return random_decoder(
        parse_config(TINY | overrides), positions=256, vocabulary=vocabulary, seed=seed
    )


def tiny_model(
    seed: int = 1, rows: int = 1, capacity: int = 200, max_nodes: int = 16
) -> EagerModel:
    return EagerModel(tiny_decoder(seed), rows=rows, capacity=capacity, max_nodes=max_nodes)


def loaded(
    directory: Path,
    positions: int = 64,
    vocabulary: int = 61,
    dtype: torch.dtype | None = None,
    layers: Layers = WHOLE,
) -> Decoder:
    return load_decoder(
        directory,
        positions=positions,
        vocabulary=vocabulary,
        dtype=dtype,
        device=torch.device("cpu"),
        layers=layers,
    )


def sequence_after(
    model: Model, tokens: Sequence[int], row: int = 0, params: SamplingParams = GREEDY
) -> ModelSequence:
    sequence = ModelSequence(model, row, params)
    sequence.extend(tokens)
    return sequence


def by_id(ranked: Ranked) -> NDArray[np.float32]:  # [n, V]
    """The scores of all tokens, which were ranked, in the order of their ids."""
    scores: NDArray[np.float32] = np.take_along_axis(ranked.scores, ranked.ids.argsort(1), 1)
    return scores


def segment(
    row: int, nodes: int, params: SamplingParams = GREEDY, first: int = 0, context: int = 0
) -> Segment:
    """A chain at the start of a row, in slots from `first` on, with a context that none sees."""
    order, mask = np.arange(nodes, dtype=np.int32), np.tri(nodes, dtype=np.bool_)
    unseen = np.zeros((1, context), dtype=np.bool_)
    return Segment(row, order % 50 + 1, order + first, order, unseen, mask, order, params)


def write_checkpoint(directory: Path, seed: int = 1, **overrides: Any) -> Path:
    """A random decoder's files; an override of None removes a field of config.json."""
    raw = {field: value for field, value in (TINY | overrides).items() if value is not None}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    decoder = random_decoder(
        parse_config(raw), positions=256, vocabulary=raw["vocab_size"], seed=seed
    )
    save_file(
        {name: tensor.contiguous() for name, tensor in decoder.state_dict().items()},
        directory / "model.safetensors",
    )
    return directory


def write_checkpoint_with_tokenizer(directory: Path, seed: int = 1, **overrides: Any) -> Path:
    """The same with the embedded pair's tokenizer, and a vocabulary of its size."""
    vocabulary = Tokenizer(EMBEDDED / "target").vocabulary
    write_checkpoint(directory, seed, **{"vocab_size": vocabulary, "eos_token_id": 0} | overrides)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED / "target" / name, directory / name)
    return directory


def adjustment(vocabulary: int, rng: np.random.Generator, nodes: int, named: int) -> Adjustment:
    """What a rule may say at a tree's nodes: the changes of the first one are a text's. Other paths
    lack some of them, change some and add some. They are in any order, and padded.
    """
    words = -(-vocabulary // 32)
    text = rng.permutation(vocabulary)[:named]
    told = dict(zip(text.tolist(), rng.uniform(0.5, 2, (named, 2)).tolist(), strict=True))
    rows = [told]
    for _ in range(nodes - 1):
        own, some = dict(list(told.items())[rng.integers(4) :]), rng.permutation(vocabulary)[:3]
        rows.append(
            own | dict(zip(some.tolist(), rng.uniform(0.5, 2, (3, 2)).tolist(), strict=True))
        )
    ids = np.zeros((nodes, named + 4), dtype=np.int32)
    changes = np.tile(np.array([1, 0], dtype=np.float32), (nodes, named + 4, 1))
    for row, pairs in enumerate(rows):
        order = rng.permutation(named + 4)[: len(pairs)]
        ids[row, order] = list(pairs)
        changes[row, order] = np.reshape(list(pairs.values()), (-1, 2))
    bits = rng.random((nodes, 32 * words)) < 0.5
    bits[:, vocabulary:] = False
    allowed = np.packbits(bits, -1, "little").view(np.int32) if rng.random() < 0.8 else None
    return Adjustment(allowed, ids, changes[..., 0].copy(), changes[..., 1].copy())
