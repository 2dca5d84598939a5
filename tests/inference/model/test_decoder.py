"""The transformer against `transformers`, family by family, and against itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.errors import LimitExceeded
from inference.model.decoder import layers_on
from inference.model.layers import WIDE, Sight, attend
from inference.sampling import SamplingParams
from inference.tree.token_tree import TokenTree
from tests.support.models import TINY, by_id, loaded, sequence_after, tiny_decoder, tiny_model

VOCABULARY = 97
COMMON: dict[str, Any] = TINY | {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
FAST = {"rope_type": "default", "rope_theta": 1e6}
# model_type, fields
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama without groups, tied": (
        "llama",
        {"num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    ),
    "llama with one shared head": ("llama", {"num_key_value_heads": 1}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rope": ("llama", {"head_dim": 16, "rope_parameters": LLAMA3}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}),
    "mistral": ("mistral", {"head_dim": 12, "sliding_window": None}),
    "mistral, window of the whole context": ("mistral", {"sliding_window": 128}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": FAST}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 with heads as wide as by default": ("qwen3", {}),
}
PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, 60).tolist()
"""Beyond the 32 original positions of the Llama 3 rope."""


@cache
def original(family: str) -> Any:
    """The family's model as `transformers` computes it, with large weights."""
    kind, fields = FAMILIES[family]
    raw = {**COMMON, **fields}
    del raw["model_type"], raw["rope_theta"]
    config = AutoConfig.for_model(kind, **raw)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    model.eval()
    generator = torch.Generator().manual_seed(sorted(FAMILIES).index(family))
    for name, parameter in model.named_parameters():
        spread = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data = 1 + spread if "norm" in name else spread
    return model


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def directory(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    original(family).save_pretrained(path, max_shard_size="20KB")
    assert len(list(path.glob("model-*.safetensors"))) > 1
    return path


@pytest.fixture(scope="module")
def model(directory: Path) -> EagerModel:
    return EagerModel(loaded(directory, 128, VOCABULARY), rows=2, capacity=120, max_nodes=64)


@torch.no_grad()
def log_probabilities(family: str, tokens: Sequence[int]) -> NDArray[np.float64]:
    """What `transformers` expects after each token."""
    logits = original(family)(torch.tensor([list(tokens)])).logits[0]
    return torch.log_softmax(logits.double(), -1).numpy()


def scores_at(
    sequence: ModelSequence, tree: TokenTree, nodes: Sequence[int]
) -> NDArray[np.float32]:
    """Log-probabilities of every token at these nodes (temperature 0)."""
    vocabulary = sequence.model.decoder.vocabulary  # type: ignore[attr-defined]
    return by_id(sequence.rank(tree, nodes, vocabulary))


def test_a_chain_scores_as_transformers_scores_it_in_one_call_and_in_chunks(
    family: str, directory: Path, model: EagerModel
) -> None:
    sequence = ModelSequence(model, 0, SamplingParams())
    found = scores_at(sequence, TokenTree.chain(PROMPT), range(len(PROMPT)))
    assert np.abs(found - log_probabilities(family, PROMPT)).max() < 5e-5
    small = EagerModel(loaded(directory, 128, VOCABULARY), rows=1, capacity=70, max_nodes=7)
    found = scores_at(sequence_after(small, PROMPT[:-1]), TokenTree.chain(PROMPT[-1:]), [0])
    assert np.abs(found - log_probabilities(family, PROMPT)[-1:]).max() < 5e-5


TREE = TokenTree(*np.array([[7, 1, 2, 3, 4, 5, 1, 9], [-1, 0, 0, 2, 2, 4, 1, 4]]))
"""7 -> 1 -> 1 and 7 -> 2 -> (3, 4 -> (5, 9))."""


def test_each_path_of_a_tree_scores_as_in_transformers(family: str, model: EagerModel) -> None:
    """Siblings and cousins in one call."""
    sequence = sequence_after(model, PROMPT[:20])
    for level in ([0], [1, 2], [3, 4, 6], [5, 7]):
        for node, scores in zip(level, scores_at(sequence, TREE, level), strict=True):
            path = TREE.tokens[TREE.mask[node]].tolist()
            expected = log_probabilities(family, PROMPT[:20] + path)[-1]
            assert np.abs(scores - expected).max() < 5e-5


def test_attention_on_a_cpu_is_that_of_narrow_calls_and_rounds_no_score_of_bfloat16() -> None:
    attend_on_cpu, nodes = layers_on(torch.device("cpu")).attend, 2 * WIDE
    assert attend_on_cpu is not None
    noise = torch.Generator().manual_seed(0)
    sizes = [(2, nodes, 4, 8), (2, 30, 16), (2, 30, 16), (2, nodes, 16), (2, nodes, 16)]
    q, *cached = (torch.randn(size, generator=noise) for size in sizes)
    context = torch.rand((2, nodes, 30), generator=noise) < 0.7
    tree = (torch.rand((2, nodes, nodes), generator=noise) < 0.3) | torch.eye(nodes).bool()
    arguments: Any = (q, *cached, Sight(q, q, context, tree))
    assert torch.allclose(attend_on_cpu(*arguments), attend(*arguments), atol=1e-6)
    q = torch.full((1, 1, 1, 64), 2.0, dtype=torch.bfloat16)  # scores near 64 have steps of a half
    keys = (4 + torch.rand((1, 9, 64), generator=noise) / 16).bfloat16()
    values = torch.eye(9, 64, dtype=torch.bfloat16)[None]
    seen = torch.ones((1, 1, 8), dtype=torch.bool)
    sight = Sight(q[..., :1], q[..., :1], seen, seen[..., :1])
    mixed = attend_on_cpu(q, keys[:, :8], values[:, :8], keys[:, 8:], values[:, 8:], sight)
    expected = torch.softmax((keys[0].double() @ q[0, 0, 0].double()) / 8, 0)
    assert torch.allclose(mixed[0, 0, :9].double(), expected, atol=1e-6)


def test_ids_beyond_the_tokenizer_are_never_chosen() -> None:
    decoder = tiny_decoder(vocabulary=50)
    head: Any = decoder.lm_head
    head.weight[50:] *= 100
    for params in (SamplingParams(), SamplingParams(5.0, seed=1), SamplingParams(5.0, 200, seed=1)):
        sequence = ModelSequence(EagerModel(decoder, rows=1, capacity=90, max_nodes=80), 0, params)
        assert sequence.choose(TokenTree.chain(list(range(50)))).max() < 50
        sequence.abandon()
        assert sequence.rank(TokenTree.chain(list(range(50))), range(50), 50).ids.max() < 50


def fresh_scores(tokens: Sequence[int], tree: TokenTree) -> NDArray[np.float32]:
    return scores_at(sequence_after(tiny_model(), tokens), tree, range(len(tree)))


NEXT = TokenTree(np.array([11, 12, 13, 14]), np.array([-1, 0, 0, 1]))
PREFIX = list(range(20, 30))


@pytest.mark.parametrize("more", [[], [8, 9, 10, 11, 12]], ids=["a tree", "a longer prompt"])
def test_pending_tokens_that_do_not_fit_are_fed_before(more: list[int]) -> None:
    sequence = sequence_after(tiny_model(max_nodes=4), PREFIX)
    sequence.commit(TokenTree.chain([7]), [])
    assert (sequence.length, sequence.cached) == (11, 10)
    sequence.extend(more)
    expected = fresh_scores([*PREFIX, 7, *more], NEXT)
    assert np.abs(scores_at(sequence, NEXT, range(4)) - expected).max() < 1e-5


def test_a_row_too_full_for_the_tree_keeps_its_tokens() -> None:
    sequence = sequence_after(tiny_model(capacity=15), PREFIX)
    sequence.commit(TokenTree.chain([7]), [])
    with pytest.raises(LimitExceeded, match="row is full"):
        sequence.rank(TREE, range(8), 1)
    assert (sequence.length, sequence.cached) == (11, 10)
    expected = fresh_scores([*PREFIX, 7], NEXT)
    assert np.abs(scores_at(sequence, NEXT, range(4)) - expected).max() < 1e-5
