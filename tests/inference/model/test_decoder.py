"""The transformer against `transformers`, family by family, and against itself: trees, batches,
padding, partly accepted trees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from inference.backends import Ranked, Segment, eager
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.backends.slots import Slots
from inference.drafters.draft_tree import DraftNode, DraftTree
from inference.drafters.round_proposer import BestFirst, Budget
from inference.errors import InvalidRequest, LimitExceeded
from inference.model.checkpoint import load_decoder
from inference.model.config import read_config
from inference.model.noise import noise
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from tests.support.models import tiny_decoder, tiny_model

torch.set_num_threads(1)
CPU = torch.device("cpu")
VOCABULARY = 97
Table = NDArray[np.float64]

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[type, type[PreTrainedModel], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama without groups, tied": (
        LlamaConfig,
        LlamaForCausalLM,
        {"num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3},
    ),
    "llama with one shared head": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "llama with biases": (
        LlamaConfig,
        LlamaForCausalLM,
        {"attention_bias": True, "mlp_bias": True},
    ),
    "llama 3 rope": (LlamaConfig, LlamaForCausalLM, {"head_dim": 16, "rope_parameters": LLAMA3}),
    "linear rope": (
        LlamaConfig,
        LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}},
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"head_dim": 12, "sliding_window": None}),
    "mistral, window of the whole context": (
        MistralConfig,
        MistralForCausalLM,
        {"sliding_window": 128},
    ),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen2 tied": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
}
families = pytest.mark.parametrize("family", list(FAMILIES))
PROMPT = np.random.default_rng(5).integers(0, VOCABULARY, 60).tolist()
"""Beyond the 32 original positions of the Llama 3 rope."""


@cache
def original(family: str) -> Any:
    """The family's model as `transformers` computes it, with weights large enough to disagree
    about.
    """
    config_class, model_class, fields = FAMILIES[family]
    config = config_class(**(COMMON | fields))
    config._attn_implementation = "eager"
    model: Any = model_class(config)
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
    original(family).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(directory: Path) -> EagerModel:
    return EagerModel(decoder_from(directory), rows=2, capacity=120, max_nodes=64)


def decoder_from(directory: Path, dtype: torch.dtype | None = None) -> Any:
    return load_decoder(directory, positions=128, vocabulary=VOCABULARY, dtype=dtype, device=CPU)


@torch.no_grad()
def log_probabilities(family: str, tokens: Sequence[int]) -> Table:
    """What `transformers` expects after each token."""
    logits = original(family)(torch.tensor([list(tokens)])).logits[0]
    return torch.log_softmax(logits.double(), -1).numpy()


def sequence_after(
    model: EagerModel, tokens: Sequence[int], row: int = 0, params: SamplingParams | None = None
) -> ModelSequence:
    sequence = ModelSequence(model, row, params or SamplingParams())
    sequence.extend(tokens)
    return sequence


def unranked(ids: NDArray[np.int32], scores: NDArray[np.float32]) -> Table:
    """Ranked children of the whole vocabulary, laid out by token."""
    table = np.empty(scores.shape)
    np.put_along_axis(table, ids.astype(np.int64), scores.astype(np.float64), axis=-1)
    return table


def scores_at(sequence: ModelSequence, tree: TokenTree, nodes: Sequence[int]) -> Table:
    """Log-probabilities of every token at these nodes (temperature 0)."""
    vocabulary = sequence.model.decoder.vocabulary  # type: ignore[attr-defined]
    return unranked(*sequence.rank(tree, nodes, vocabulary))


def path_to(tree: TokenTree, node: int) -> list[int]:
    """The tokens from the root down to a node."""
    return [int(token) for token, seen in zip(tree.tokens, tree.mask[node], strict=True) if seen]


# --- against transformers
# ---------------------------------------------------------------------------------------------


def test_a_chain_scores_as_transformers_scores_it(family: str, model: EagerModel) -> None:
    sequence = ModelSequence(model, 0, SamplingParams())
    found = scores_at(sequence, TokenTree.chain(PROMPT), range(len(PROMPT)))
    assert np.abs(found - log_probabilities(family, PROMPT)).max() < 5e-5


def test_a_prompt_fed_in_chunks_scores_as_transformers_scores_it(
    family: str, directory: Path
) -> None:
    small = EagerModel(decoder_from(directory), rows=1, capacity=70, max_nodes=7)
    found = scores_at(sequence_after(small, PROMPT[:-1]), TokenTree.chain(PROMPT[-1:]), [0])
    assert np.abs(found - log_probabilities(family, PROMPT)[-1:]).max() < 5e-5


def test_greedy_decoding_gives_the_tokens_of_transformers(family: str, model: EagerModel) -> None:
    prompt = PROMPT[:11]
    reference = original(family)
    expected = reference.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=40,
        eos_token_id=None,
        pad_token_id=0,
    )[0, 11:].tolist()
    sequence, root, found = sequence_after(model, prompt[:-1]), prompt[-1], []
    for _ in range(40):
        tree = TokenTree.chain([root])
        root = int(sequence.choose(tree)[0])
        sequence.commit(tree, [])
        found.append(root)
    assert found == expected


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_seeded_decoding_follows_the_contract_on_the_logits_of_transformers(
    family: str, model: EagerModel, temperature: float
) -> None:
    tokens, seed = PROMPT[:5], 2**35 + 11
    sequence = sequence_after(model, tokens[:-1], params=SamplingParams(temperature, seed=seed))
    for _ in range(12):
        position = torch.tensor(
            len(tokens), dtype=torch.int32
        )  # the chosen token is number len(tokens), counted from 0
        gumbel = noise(
            torch.tensor([11, 8], dtype=torch.int32),
            position,
            torch.arange(VOCABULARY, dtype=torch.int32),
        ).numpy()
        expected = int(np.argmax(log_probabilities(family, tokens)[-1] / temperature + gumbel))
        tree = TokenTree.chain(tokens[-1:])
        assert sequence.choose(tree).tolist() == [expected]
        sequence.commit(tree, [])
        tokens = [*tokens, expected]


def grown_tree(sequence: ModelSequence, root: int) -> tuple[TokenTree, dict[int, Table]]:
    """A tree grown level by level from the model's own ranking, and the scores it gave at each
    node it looked at.
    """
    draft = DraftTree(root, len(PROMPT), 1000)
    order, seen = {draft.root: 0}, dict[int, Table]()

    def tree_of(nodes: Iterable[DraftNode]) -> TokenTree:
        for node in nodes:
            order.setdefault(node, len(order))
        parents = [-1 if node.parent is None else order[node.parent] for node in order]
        tokens = np.array([node.token for node in order], dtype=np.int32)
        return TokenTree(tokens, np.array(parents, dtype=np.int32))

    def rank(nodes: Sequence[DraftNode], k: int) -> Ranked:
        tree = tree_of(nodes)
        asked = [order[node] for node in nodes]
        ranked = sequence.rank(tree, asked, VOCABULARY)
        seen.update(zip(asked, unranked(*ranked), strict=True))
        return Ranked(ranked.ids[:, :k], ranked.scores[:, :k])

    grown = BestFirst(nodes=14, depth=4, width=3).grow(draft, Budget(14, 4), rank)
    return tree_of(sorted(grown, key=lambda node: node.position)), seen


def test_every_path_of_a_tree_grown_by_levels_scores_as_transformers_scores_it_alone(
    family: str, model: EagerModel
) -> None:
    tree, seen = grown_tree(sequence_after(model, PROMPT[:20]), PROMPT[20])
    expanded = [(int(tree.parents[node]), int(tree.depths[node])) for node in seen]
    assert max(depth for _, depth in expanded) >= 2
    assert len(seen) > len({parent for parent, _ in expanded})  # siblings were expanded
    assert any(
        depth >= 2 and len({parent for parent, other in expanded if other == depth}) > 1
        for _, depth in expanded
    )  # cousins too
    for node, scores in seen.items():
        expected = log_probabilities(family, PROMPT[:20] + path_to(tree, node))[-1]
        assert np.abs(scores - expected).max() < 5e-5


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(1.0, seed=4), SamplingParams(0.7, 20, 0.9, seed=5)],
    ids=str,
)
def test_every_node_of_a_whole_tree_chooses_what_its_path_chooses_alone(
    model: EagerModel, params: SamplingParams
) -> None:
    tree, _ = grown_tree(sequence_after(model, PROMPT[:20]), PROMPT[20])
    chosen = sequence_after(model, PROMPT[:20], params=params).choose(tree)
    for node in range(len(tree)):
        path = path_to(tree, node)
        alone = sequence_after(model, PROMPT[:20] + path[:-1], row=1, params=params)
        assert chosen[node] == alone.choose(TokenTree.chain(path[-1:]))[0]


def test_bfloat16_is_close(family: str, directory: Path) -> None:
    model = EagerModel(decoder_from(directory, torch.bfloat16), rows=1, capacity=70, max_nodes=64)
    found = scores_at(
        ModelSequence(model, 0, SamplingParams()), TokenTree.chain(PROMPT), range(len(PROMPT))
    )
    apart = np.abs(np.exp(found) - np.exp(log_probabilities(family, PROMPT))).sum(-1) / 2
    assert apart.mean() < 0.05  # total variation
    assert model.cache.keys[0].dtype == torch.bfloat16


def test_frequencies_are_those_of_transformers(family: str, directory: Path) -> None:
    expected = original(family).model.rotary_emb.inv_freq.numpy()
    assert read_config(directory).frequencies() == pytest.approx(expected, rel=3e-7)


def test_a_sharded_checkpoint_loads_like_a_whole_one(tmp_path: Path) -> None:
    original("qwen2").save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    model = EagerModel(decoder_from(tmp_path), rows=1, capacity=70, max_nodes=64)
    found = scores_at(
        ModelSequence(model, 0, SamplingParams()), TokenTree.chain(PROMPT), range(len(PROMPT))
    )
    assert np.abs(found - log_probabilities("qwen2", PROMPT)).max() < 5e-5


def test_ids_beyond_the_tokenizer_are_never_chosen() -> None:
    decoder = tiny_decoder(vocabulary=50)
    decoder.lm_head.weight[50:] *= 100
    for params in (SamplingParams(), SamplingParams(5.0, seed=1), SamplingParams(5.0, 200, seed=1)):
        sequence = ModelSequence(EagerModel(decoder, rows=1, capacity=90, max_nodes=80), 0, params)
        assert sequence.choose(TokenTree.chain(list(range(50)))).max() < 50
        sequence.abandon()
        assert sequence.rank(TokenTree.chain(list(range(50))), range(50), 50).ids.max() < 50


# --- against itself
# --------------------------------------------------------------------------------------------------

TREE = TokenTree(np.array([7, 1, 2, 3, 4, 5, 1, 9]), np.array([-1, 0, 0, 2, 2, 4, 1, 4]))
"""7 -> 1 -> 1 and 7 -> 2 -> (3, 4 -> (5, 9))."""


def segment(sequence: ModelSequence, tree: TokenTree) -> Segment:
    return sequence.prepare_nodes(tree, range(len(tree)))


def rows_in_use() -> tuple[EagerModel, list[tuple[int, list[int], TokenTree]]]:
    """A model of 6 rows, and for rows 4, 0 and 3 a prompt and a tree of their own; the rest is
    idle.
    """
    model = tiny_model(rows=6, capacity=150, max_nodes=100)
    generator = np.random.default_rng(2)
    prompts = [generator.integers(0, 61, length).tolist() for length in (3, 90, 31)]
    return model, list(
        zip(
            (4, 0, 3),
            prompts,
            (TREE, TokenTree.chain([8]), TokenTree.chain([5, 6, 7])),
            strict=True,
        )
    )


def test_rows_in_one_call_score_as_one_by_one() -> None:
    model, work = rows_in_use()
    alone = tiny_model(rows=1, capacity=150, max_nodes=100)
    together = model.rank(
        [segment(sequence_after(model, prompt, row), tree) for row, prompt, tree in work], 61
    )
    for (_, prompt, tree), ranked in zip(work, together, strict=True):
        expected = scores_at(sequence_after(alone, prompt), tree, range(len(tree)))
        assert ranked.ids.shape == (len(tree), 61)
        assert np.abs(unranked(*ranked) - expected).max() < 1e-5


def test_rows_in_one_call_choose_as_one_by_one_whatever_their_sampling() -> None:
    model, work = rows_in_use()
    alone = tiny_model(rows=1, capacity=150, max_nodes=100)
    greedy, cut, free = (
        SamplingParams(),
        SamplingParams(0.7, 9, 0.9, seed=3),
        SamplingParams(1.0, seed=2**33),
    )
    for mixture in (
        (greedy,) * 3,
        (cut,) * 3,
        (free,) * 3,
        (free, greedy, cut),
        (cut, free, greedy),
        (greedy, cut, greedy),
    ):
        sequences = [
            sequence_after(model, prompt, row, params)
            for (row, prompt, _), params in zip(work, mixture, strict=True)
        ]
        together = model.choose(
            [
                segment(sequence, tree)
                for sequence, (_, _, tree) in zip(sequences, work, strict=True)
            ]
        )
        for (_, prompt, tree), params, chosen in zip(work, mixture, together, strict=True):
            assert (
                chosen.tolist()
                == sequence_after(alone, prompt, params=params).choose(tree).tolist()
            )


def test_rows_that_grow_trees_share_a_call_with_rows_that_start() -> None:
    model, work = rows_in_use()
    alone = tiny_model(rows=1, capacity=150, max_nodes=100)
    growing = sequence_after(model, work[0][1], row=2)
    growing.rank(TREE, [0], 1)
    growing.rank(TREE, [1, 2], 1)
    late = growing.prepare_nodes(TREE, [3, 4, 6])
    starting = segment(sequence_after(model, work[1][1], row=5), TREE)
    assert (len(late.context), len(starting.context)) == (3, 1)
    ranked = model.rank([late, starting], 61)
    first = scores_at(sequence_after(alone, work[0][1]), TREE, range(8))
    second = scores_at(sequence_after(alone, work[1][1]), TREE, range(8))
    assert np.abs(unranked(*ranked[0]) - first[[3, 4, 6]]).max() < 1e-5
    assert np.abs(unranked(*ranked[1]) - second).max() < 1e-5


def test_a_call_leaves_idle_rows_as_they_were() -> None:
    model, work = rows_in_use()
    idle = sequence_after(model, list(range(40)), row=1)
    expected = scores_at(sequence_after(tiny_model(), list(range(40))), TREE, range(8))
    model.choose([segment(sequence_after(model, prompt, row), tree) for row, prompt, tree in work])
    assert np.abs(scores_at(idle, TREE, range(8)) - expected).max() < 1e-5


def test_one_row_twice_in_a_call_is_refused() -> None:
    model = tiny_model()
    part = segment(sequence_after(model, [1, 2]), TREE)
    with pytest.raises(InvalidRequest, match="one row twice"):
        model.choose([part, part])


def test_a_tree_larger_than_the_model_takes_is_refused() -> None:
    sequence = sequence_after(tiny_model(max_nodes=7), [1, 2])
    with pytest.raises(LimitExceeded, match=r"8 nodes.*7"):
        sequence.choose(TREE)


@pytest.mark.parametrize(
    ("step", "nodes", "capacity"), [(8, 8, 60), (64, 64, 200), (256, 100, 60), (256, 16, 400)]
)
def test_padding_does_not_change_scores(
    step: int, nodes: int, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = list(range(3, 44))
    expected = scores_at(sequence_after(tiny_model(capacity=49), prompt), TREE, range(8))
    monkeypatch.setattr(eager, "SLOT_STEP", step)
    model = tiny_model(rows=2, capacity=capacity, max_nodes=nodes)
    beside = segment(
        sequence_after(model, [9, 9], row=1), TokenTree.chain(list(range(min(nodes, 40))))
    )
    ranked = model.rank([segment(sequence_after(model, prompt), TREE), beside], 61)[0]
    assert np.abs(unranked(*ranked) - expected).max() < 1e-5


def test_slots_in_any_order_give_the_same_scores() -> None:
    model, prompt = tiny_model(rows=2, max_nodes=32), TokenTree.chain(list(range(30)))
    slots = Slots(model.capacity)
    slots.take(np.zeros(60, dtype=np.int32))
    slots.release(list(range(1, 60, 2)))  # nobody sees the others, which the commit below frees
    scattered = ModelSequence(model, 1, SamplingParams(), slots)
    scores_at(scattered, prompt, range(30))
    scattered.commit(prompt, range(1, 30))
    assert np.flatnonzero(slots.committed).tolist() == list(range(1, 60, 2))
    found = scores_at(scattered, TREE, range(8))
    assert slots.positions[:16:2].tolist() == [30, 31, 31, 32, 32, 33, 32, 33]
    assert np.abs(found - fresh_scores(range(30), TREE)).max() < 1e-5


def fresh_scores(tokens: Sequence[int], tree: TokenTree) -> Table:
    return scores_at(sequence_after(tiny_model(), tokens), tree, range(len(tree)))


NEXT = TokenTree(np.array([11, 12, 13, 14]), np.array([-1, 0, 0, 1]))
PREFIX = list(range(20, 30))


@pytest.mark.parametrize("path", [[], [1], [2, 4], [2, 4, 7]])
def test_after_a_partly_accepted_tree_it_goes_on_as_if_the_path_had_been_the_prompt(
    path: list[int],
) -> None:
    sequence = sequence_after(tiny_model(), PREFIX)
    tokens = list(PREFIX)
    for _ in range(3):  # the third tree lies in the holes of the two before it
        sequence.choose(TREE)
        sequence.commit(TREE, path)
        tokens += [int(TREE.tokens[node]) for node in [0, *path]]
        assert sequence.length == sequence.cached == len(tokens)
    assert np.abs(scores_at(sequence, NEXT, range(4)) - fresh_scores(tokens, NEXT)).max() < 1e-5
    assert sequence.slots.high_water <= len(tokens) + len(TREE)


@pytest.mark.parametrize(
    ("levels", "path", "pending"),
    [
        (
            [[0], [1, 2]],
            [2, 4],
            1,
        ),  # a leaf that was never looked at; its slot is a hole below the high-water mark
        ([[0], [1, 2], [3, 4, 6]], [2, 4, 5], 1),
        ([[0], [2]], [1], 1),
        ([[0]], [2], 1),
        ([], [], 1),  # not even the root was looked at
    ],
)
def test_accepted_nodes_that_were_never_evaluated_are_fed_with_the_next_tree(
    levels: list[list[int]], path: list[int], pending: int
) -> None:
    sequence = sequence_after(tiny_model(), PREFIX)
    tokens = list(PREFIX)
    for _ in range(3):
        for level in levels:
            sequence.rank(TREE, level, 3)
        sequence.commit(TREE, path)
        tokens += [int(TREE.tokens[node]) for node in [0, *path]]
        assert sequence.length == len(tokens)
        assert sequence.length - sequence.cached >= pending
    found = scores_at(sequence, NEXT, [0])
    late = scores_at(sequence, NEXT, [1, 2])
    last = scores_at(sequence, NEXT, [3])
    assert np.abs(np.concatenate([found, late, last]) - fresh_scores(tokens, NEXT)).max() < 1e-5
    assert sequence.cached == len(tokens)


def test_pending_tokens_that_do_not_fit_beside_the_tree_are_fed_before_it() -> None:
    sequence = sequence_after(tiny_model(max_nodes=4), PREFIX)
    sequence.commit(TokenTree.chain([7]), [])
    assert (sequence.length, sequence.cached) == (11, 10)
    assert (
        np.abs(scores_at(sequence, NEXT, range(4)) - fresh_scores([*PREFIX, 7], NEXT)).max() < 1e-5
    )


def test_pending_tokens_are_fed_before_a_longer_prompt() -> None:
    sequence = sequence_after(tiny_model(max_nodes=4), PREFIX)
    sequence.commit(TokenTree.chain([7]), [])
    sequence.extend([8, 9, 10, 11, 12])
    assert (
        np.abs(
            scores_at(sequence, NEXT, range(4)) - fresh_scores([*PREFIX, 7, 8, 9, 10, 11, 12], NEXT)
        ).max()
        < 1e-5
    )


def test_a_row_too_full_for_the_tree_keeps_its_tokens() -> None:
    sequence = sequence_after(tiny_model(capacity=15), PREFIX)
    sequence.commit(TokenTree.chain([7]), [])
    with pytest.raises(LimitExceeded, match="row is full"):
        sequence.rank(TREE, range(8), 1)
    assert (sequence.length, sequence.cached) == (11, 10)
    assert (
        np.abs(scores_at(sequence, NEXT, range(4)) - fresh_scores([*PREFIX, 7], NEXT)).max() < 1e-5
    )


def test_a_tree_chosen_again_chooses_the_same() -> None:
    sequence = sequence_after(tiny_model(), PREFIX, params=SamplingParams(1.0, seed=2))
    first = sequence.choose(TREE).tolist()
    assert sequence.choose(NEXT).shape == (4,)
    assert sequence.choose(TREE).tolist() == first
