"""Slots, masks and rows as llama.cpp's sequences, on a context that can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from inference.backends import Segment
from inference.backends import gguf_model as module
from inference.backends.gguf_model import GgufModel
from inference.backends.sequence import ModelSequence
from inference.drafters.draft import Draft
from inference.drafters.round_proposer import RoundProposer
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import InvalidRequest, LimitExceeded, Unavailable
from inference.model.sampler import Sampling, choose_mixed
from inference.planner.prices import Prices
from inference.proposer import Proposer
from inference.sampling import SamplingParams
from inference.tree import TokenTree
from tests.support.copied_rows import PROMPT, shares
from tests.support.drafts import BUSHY, knowledge, speculated
from tests.support.fake_llama_cpp import VOCABULARY, Cells, logits_after, seen_after

SAMPLINGS = [SamplingParams(), SamplingParams(0.7, seed=11), SamplingParams(1.0, seed=2**62 + 5)]
LENGTH, TREE = 160, 16
ROOM = 128

Grow = Callable[[GgufModel], Proposer]
PROPOSERS: dict[str, Grow] = {
    "growing": lambda model: Draft(model).proposer(0, knowledge(), Prices(), room=ROOM),
    "rounds": lambda model: RoundProposer(model, BUSHY, room=16),
}


def model_of(
    cells: Cells, rows: int = 1, capacity: int = LENGTH + TREE, batch: int = 256
) -> GgufModel:
    return GgufModel(
        cells,
        rows=rows,
        capacity=capacity,
        max_nodes=32,
        batch=batch,
        vocabulary=VOCABULARY,
        kind="tiny F32",
        device=torch.device("cpu"),
    )


def engine_of(model: GgufModel) -> Engine:
    return Engine(model, sequence_length=LENGTH, max_tree_nodes=TREE, vocabulary=VOCABULARY)


def own_text(prompt: Sequence[int], params: SamplingParams, count: int) -> list[int]:
    """The target's text by hand: the choice after each whole prefix."""
    tokens, sampling = list(prompt), Sampling.of([params], torch.device("cpu"))
    for at in range(len(prompt), len(prompt) + count):
        logits = torch.from_numpy(logits_after(seen_after(tokens, 0))[None, None, :VOCABULARY])
        position = torch.tensor([[at]], dtype=torch.int32)
        tokens += choose_mixed(logits, sampling, position, 1)[0].tolist()
    return tokens[len(prompt) :]


@pytest.fixture(params=[256, 72], ids=["enough sequences", "few sequences"])
def sequences(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With few of them keys are given up while they are needed, and computed again."""
    monkeypatch.setattr(module, "SEQUENCES", request.param)
    return int(request.param)


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
@pytest.mark.parametrize("draft", [0, 1], ids=["the target itself", "a draft that disagrees"])
@pytest.mark.parametrize("name", PROPOSERS)
def test_output_equals_the_targets_own_seeded_decoding(
    sequences: int, name: str, draft: int, params: SamplingParams
) -> None:
    own = own_text(PROMPT, params, 40)
    target = Cells(room=2 * (LENGTH + TREE))
    engine = engine_of(model_of(target, rows=2))
    drafting = Cells(draft, room=LENGTH + ROOM)
    proposer = PROPOSERS[name](model_of(drafting, capacity=LENGTH + ROOM))
    for _ in range(2):  # the second text finds the first one's keys
        assert speculated(LocalSession(engine), proposer, PROMPT, params, 40) == own
    assert drafting.decodes > 10


@pytest.mark.parametrize("params", SAMPLINGS, ids=lambda params: f"T{params.temperature}")
def test_a_text_from_a_copied_row_is_that_of_a_prefilled_one(
    sequences: int, params: SamplingParams
) -> None:
    assert shares(engine_of(model_of(Cells(), rows=3)), params) == len(PROMPT) + 8


def siblings(count: int) -> TokenTree:
    """A root with so many children."""
    return TokenTree(
        np.arange(count + 1, dtype=np.int32), np.array([-1] + [0] * count, dtype=np.int32)
    )


def after(prefix: Sequence[int], tokens: Sequence[int]) -> list[int]:
    """What is chosen at temperature 0 after the prefix and each of the tokens."""
    seen = [seen_after([*prefix, token], 0) for token in tokens]
    return [int(logits_after(one)[:VOCABULARY].argmax()) for one in seen]


@pytest.fixture
def cells() -> Cells:
    return Cells()


def test_keys_are_kept_and_a_forward_computes_its_new_nodes_only(cells: Cells) -> None:
    sequence = ModelSequence(model_of(cells), 0, SamplingParams())
    sequence.extend(PROMPT)
    before = cells.tokens
    sequence.choose(siblings(5))
    assert cells.tokens - before == 6
    assert cells.used == len(PROMPT) + 6


def test_a_failed_decode_is_an_error_and_the_next_call_computes_what_it_would_have(
    cells: Cells,
) -> None:
    sequence = ModelSequence(model_of(cells), 0, SamplingParams())
    sequence.extend(PROMPT)
    cells.fails = True
    with pytest.raises(Unavailable, match="made to fail"):
        sequence.choose(siblings(5))
    assert cells.used == len(PROMPT)
    chosen = sequence.choose(siblings(5))
    assert chosen.tolist()[1:] == after([*PROMPT, 0], range(1, 6))


def test_a_tree_of_too_many_branches_is_refused_and_changes_nothing(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEQUENCES", 12)
    sequence = ModelSequence(model_of(cells), 0, SamplingParams())
    sequence.extend(PROMPT)
    with pytest.raises(LimitExceeded, match=r"6 branches in one call: llama\.cpp takes 5"):
        sequence.choose(siblings(6))
    assert sequence.choose(siblings(5)).tolist()[1:] == after([*PROMPT, 0], range(1, 6))


def test_rows_that_do_not_fit_into_one_decode_are_computed_in_several(cells: Cells) -> None:
    model = model_of(cells, rows=3, batch=32)
    rows = [ModelSequence(model, row, SamplingParams()) for row in range(3)]
    for row, sequence in enumerate(rows):
        sequence.extend([row, *PROMPT])
    before = cells.decodes
    chosen = model.choose([sequence.prepare(siblings(14)) for sequence in rows])
    assert cells.decodes - before == 2
    for row, ids in enumerate(chosen):
        assert ids.tolist()[1:] == after([row, *PROMPT, 0], range(1, 15))


def test_a_position_beyond_the_row_is_refused(cells: Cells) -> None:
    model = model_of(cells, capacity=8)
    one = np.zeros(1, dtype=np.int32)
    segment = Segment(
        0, one, one, one + 8, np.ones((1, 0), bool), np.ones((1, 1), bool), one, SamplingParams()
    )
    with pytest.raises(LimitExceeded, match="position 8: this model has 8 slots a row"):
        model.choose([segment])


def test_a_node_that_does_not_see_every_position_above_it_is_refused(cells: Cells) -> None:
    model = model_of(cells)
    sequence = ModelSequence(model, 0, SamplingParams())
    sequence.extend(PROMPT)
    segment = sequence.prepare(siblings(1))
    context = segment.context.copy()
    context[0, 3] = False
    with pytest.raises(InvalidRequest, match="one key at each position"):
        model.choose([segment._replace(context=context)])


def test_keys_that_were_given_up_for_other_branches_are_computed_again(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEQUENCES", 12)
    sequence = ModelSequence(model_of(cells), 0, SamplingParams())
    sequence.extend(PROMPT)
    parents = [-1, *[0] * 15, *range(1, 16)]  # 15 children, each with one of its own
    tree = TokenTree(np.arange(31, dtype=np.int32), np.array(parents, dtype=np.int32))
    for nodes in (range(1), range(1, 6), range(6, 11), range(11, 16)):
        sequence.rank(tree, nodes, 1)
    before = cells.tokens
    for node in range(16, 31):
        ranked = sequence.rank(tree, [node], 1)
        assert ranked.ids[0].tolist() == after([*PROMPT, 0, node - 15], [node])
    assert cells.tokens - before > 15
