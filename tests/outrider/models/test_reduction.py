"""A reduced draft names frequent tokens only, and is told from the whole one."""

from __future__ import annotations

import numpy as np
import pytest

from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.engine.local_session import LocalSession
from inference.model.decoder import Decoder
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from outrider.draft_methods import find_draft
from outrider.models.capacity import WHOLE, Capacity, Reduction
from outrider.models.loading import Checkpoint
from outrider.options.groups import DeviceOptions, ReductionOptions
from tests.support import pairs
from tests.support.drafts import rounds, speculated
from tests.support.models import random_decoder

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=5), SamplingParams(1.0, seed=6)]
PROMPT = pairs.prompt_of(9)


def reduced(seed: int, kept: Reduction) -> Decoder:
    """The decoder of this seed with less of it. Seed 1 has the target's weights, 2 disagrees."""
    vocabulary = kept.vocabulary(pairs.VOCABULARY)
    whole = random_decoder(
        pairs.config(), positions=pairs.SEQUENCE_LENGTH, vocabulary=vocabulary, seed=seed
    )
    return kept.apply(whole)


def test_int8_of_the_targets_own_weights_names_most_of_its_tokens() -> None:
    served, steps = pairs.engine(pairs.decoder(1)), []
    proposer = rounds(reduced(1, Reduction("int8")))
    made = speculated(LocalSession(served), proposer, PROMPT, SamplingParams(), 40, steps.append)
    assert len(made) == 40
    assert len([step for step in steps if step.tokens]) <= 20


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
def test_a_head_of_few_tokens_ranks_these_as_the_whole_head_would(params: SamplingParams) -> None:
    ranked = {}
    for vocabulary in (64, pairs.VOCABULARY):
        decoder = reduced(1, Reduction(head_tokens=vocabulary))
        model = EagerModel(decoder, rows=1, capacity=64, max_nodes=32)
        sequence = ModelSequence(model, 0, params)
        ids, scores = sequence.rank(TokenTree.chain(PROMPT), [len(PROMPT) - 1], 32)
        ranked[vocabulary] = ids[0], scores[0]
    few, scores = ranked[64]
    whole = [token for token in ranked[pairs.VOCABULARY][0] if token < 64]
    assert max(few) < 64
    assert list(few[: len(whole)]) == whole
    assert np.all(np.diff(scores) <= 0)
    if params.greedy:  # log-probabilities among the kept tokens
        assert 0.5 < np.exp(scores).sum() <= 1


def test_a_head_of_few_tokens_takes_no_more_memory_than_these() -> None:
    whole, few = (reduced(1, Reduction(head_tokens=n)) for n in (None, 64))
    assert few.head_weight().untyped_storage().nbytes() == 64 * 32 * 4
    assert len(whole.head_weight()) == pairs.config().vocab_size
    assert few.model.embed_tokens.weight.shape == whole.model.embed_tokens.weight.shape


def found(**given: object) -> Checkpoint:
    """The embedded draft."""
    draft = find_draft(ReductionOptions(**given))
    assert isinstance(draft.model, Checkpoint)
    return draft.model


def test_a_draft_is_loaded_as_its_flags_say(capsys: pytest.CaptureFixture[str]) -> None:
    draft = found(draft_quantization="int8", draft_head_tokens=100)
    model = draft.load(DeviceOptions(), Capacity(1, 64, 8, 16))
    assert "float32, int8 matrices, a head of 100 tokens on cpu" in capsys.readouterr().err
    chosen = [
        model.choose([ModelSequence(model, 0, params).prepare(TokenTree.chain(PROMPT))])[0]
        for params in SAMPLINGS
    ]
    assert max(one.tokens.max() for one in chosen) < 100


def test_drafts_that_compute_differently_have_fingerprints_of_their_own() -> None:
    drafts = [
        found(),
        found(draft_quantization="int8"),
        found(draft_quantization="int4"),
        found(draft_head_tokens=100),
        found(draft_quantization="int8", draft_head_tokens=100),
    ]
    assert len({draft.fingerprint()[:16] for draft in drafts}) == len(drafts)
    assert drafts[0].reduction == WHOLE
    assert all(len(draft.fingerprint()) == 32 for draft in drafts)


def test_the_head_never_has_more_ids_than_the_tokenizer() -> None:
    assert Reduction(head_tokens=100_000).vocabulary(pairs.VOCABULARY) == pairs.VOCABULARY
    assert WHOLE.vocabulary(pairs.VOCABULARY) == pairs.VOCABULARY
