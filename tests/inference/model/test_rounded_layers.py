"""A substitute rounds the layers of its checkpoint, and shares the rest with a target beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference.backends import Ranked
from inference.backends.eager import EagerModel
from inference.backends.substitute_model import load_substitute, substitute_of
from inference.model.decoder import Decoder
from inference.model.quantized import quantize
from inference.text.tokenizer import Tokenizer
from inference.tree.token_tree import TokenTree
from outrider.models.found_model import EMBEDDED
from tests.support.equality import full_logits
from tests.support.models import loaded, sequence_after, write_checkpoint

CPU, TOKENS = torch.device("cpu"), [5, 17, 3, 60]
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2, with biases, tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3, with norms of heads": {"model_type": "qwen3", "head_dim": 16},
}


def ranked(decoder: Decoder) -> Ranked:
    """The likeliest children after each of TOKENS."""
    model = EagerModel(decoder, rows=1, capacity=64, max_nodes=8)
    chain = TokenTree.chain(TOKENS)
    return sequence_after(model, []).rank(chain, range(len(chain)), 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_rounds_alike_when_it_is_read(family: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, **SIZES | FAMILIES[family])
    for vocabulary in (61, 50):
        ours = ranked(
            load_substitute(checkpoint, positions=64, vocabulary=vocabulary, dtype=None, device=CPU)
        )
        theirs = ranked(quantize(loaded(checkpoint, vocabulary=vocabulary), "int4"))
        assert np.array_equal(ours.ids, theirs.ids)
        assert np.array_equal(ours.scores, theirs.scores)


def test_it_names_most_of_the_embedded_targets_tokens() -> None:
    directory = EMBEDDED / "target"
    tokenizer = Tokenizer(directory)
    whole = loaded(directory, 64, tokenizer.vocabulary)
    text = tokenizer.encode("def main(argv):\n    for name in argv:\n        print(name)\n")
    ours, theirs = (full_logits(one, text).argmax(-1) for one in (substitute_of(whole), whole))
    assert float((ours == theirs).float().mean()) > 0.7


def test_in_one_process_it_shares_embeddings_final_norm_and_head(tmp_path: Path) -> None:
    target = loaded(write_checkpoint(tmp_path, **SIZES))
    before = full_logits(target, TOKENS)
    draft = substitute_of(target)
    assert draft.model.embed_tokens is target.model.embed_tokens
    assert draft.model.norm is target.model.norm
    assert draft.lm_head is target.lm_head
    assert torch.equal(full_logits(target, TOKENS), before)
