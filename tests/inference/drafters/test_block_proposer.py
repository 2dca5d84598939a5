"""A block draft: what its masks name, that they leave no trace, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference.backends import Masks, Ranked, Segment
from inference.backends.eager import EagerModel
from inference.backends.sequence import ModelSequence
from inference.drafters.draft import Draft
from inference.drafters.growing_proposer import GrowingProposer
from inference.planner.acceptance import PairStats
from inference.planner.child_features import mask_features
from inference.planner.prices import Prices
from inference.proposer import MODEL
from inference.sampling import SamplingParams
from inference.times import Times
from inference.tree.token_tree import TokenTree
from tests.support.drafts import knowledge
from tests.support.pairs import perturbed, prompt_of
from tests.support.scripted_models import (
    MASK,
    Says,
    ScriptedModel,
    disagreeing,
    own_text,
    perfect,
    useless,
    with_masks,
)
from tests.support.stepped import PROMPT, SAMPLING, Numbers, World, progress, sent, tokens_of

MASKS = Masks(MASK, 3)
TEXT = own_text(PROMPT, 400)
NUMBERS = Numbers()


class Watched(ScriptedModel):
    """Keeps the tokens of its last call, and a clock: 2 ms for a node, 0.1 ms for each one more."""

    now = 0.0

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.fed = [segment.tokens.tolist() for segment in segments]
        self.now += 0.0019 + 0.0001 * len(self.fed[0])
        return super().rank(segments, k)


def proposer_of(
    model: Watched,
    known: PairStats | None = None,
    room: int = 200,
    copies: bool = False,
) -> GrowingProposer:
    return Draft(model, MASKS).proposer(
        0,
        known or knowledge(),
        Prices(),
        room=room,
        clock=lambda: model.now,
        copies=copies,
    )


def test_one_call_names_tokens_of_as_many_levels_as_there_are_masks_and_one() -> None:
    model, known = Watched(with_masks(perfect, perfect)), knowledge()
    for offset in (1, 2, 3) * 20:  # that masks are right was learnt before
        sure = mask_features([[1.0, 8.0, 0.0, 0.0, 1.0, 0.0]], offset, 0.0, None)
        known.acceptance.observe_masked(sure, SAMPLING.greedy, offset, 0)
    proposer = proposer_of(model, known)
    proposer.open(PROMPT, SAMPLING, end=200)
    assert proposer.work(0.0) is not None
    assert model.fed == [[PROMPT[-1], MASK, MASK, MASK]]
    (nodes,) = sent(proposer, NUMBERS)
    tokens = tokens_of([nodes])
    assert nodes.proposer == MODEL
    assert tokens[:4] == TEXT[:4]
    assert MASK not in tokens


def test_a_draft_whose_masks_are_right_is_called_less_often() -> None:
    def calls(says: Says, masks: Masks | None = None) -> float:
        proposer = Draft(ScriptedModel(says), masks).proposer(0, knowledge(), Prices())
        world = World(proposer, 200, credit=64).live()
        assert world.made == TEXT[:200]
        return world.forwards

    plain = calls(disagreeing)
    block = calls(with_masks(disagreeing, disagreeing), MASKS)
    assert block < plain


class Slow(Watched):
    """A Watched whose calls take longer than a forward."""

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        self.now += 0.05
        return super().rank(segments, k)


def test_a_draft_that_the_target_overtakes_ranks_no_node_without_those_above_it() -> None:
    """The scripted model finds a gap where the keys of a parent are missing."""
    model = Slow(with_masks(disagreeing, disagreeing))
    assert World(proposer_of(model), 120, credit=64).live().made == TEXT[:120]


def test_masks_that_are_never_right_are_given_up() -> None:
    model, masks, known = Watched(with_masks(perfect, useless)), list[int](), knowledge()
    known.draft = Times({(1, width): 0.0019 + 0.0001 * width for width in range(1, 34)})
    proposer = proposer_of(model, known)
    proposer.open(PROMPT, SAMPLING)
    for step in range(300):
        masks.append(0)
        if proposer.work(0.0) is not None:
            masks[-1] = model.fed[0].count(MASK)
        sent(proposer, NUMBERS)
        proposer.on_progress(progress(len(PROMPT) + step, TEXT[step : step + 1]), 0.0)
    assert sum(masks[-50:]) < 0.2 * sum(masks[:50])


def test_no_mask_is_computed_where_a_wider_call_takes_longer_than_it_brings() -> None:
    known = knowledge()
    known.draft = Times({(1, 1): 0.002, (1, 2): 0.02, (1, 4): 0.2})
    model = Watched(with_masks(perfect, perfect))
    proposer = proposer_of(model, known)
    proposer.open(PROMPT, SAMPLING, end=200)
    assert proposer.work(0.0) is not None
    assert model.fed == [[PROMPT[-1]]]


class Padded(Watched):
    """A Watched that computes 16 nodes, or 32."""

    def padded(self, rows: int, nodes: int) -> tuple[int, int]:
        return rows, 16 if nodes <= 16 else 32


def test_a_call_is_filled_up_to_its_padding_and_not_beyond_what_it_is_worth() -> None:
    model, known = Padded(with_masks(disagreeing, disagreeing)), knowledge()
    known.draft = Times({(1, 16): 0.002, (1, 32): 0.02})
    proposer = proposer_of(model, known)
    proposer.open(PROMPT, SAMPLING, end=200)
    sizes, masks = list[int](), list[int]()
    for _ in range(8):
        assert proposer.work(0.0) is not None
        sizes.append(len(model.fed[0]))
        masks.append(model.fed[0].count(MASK))
    assert max(sizes) == 16
    assert any(size == 16 and 0 < named < 8 for size, named in zip(sizes, masks, strict=True))
    late = sizes[3:], masks[3:]  # many nodes are left, each of which the text hardly comes to
    assert min(late[0]) > 8
    assert sum(late[1]) <= 2, "what unlikely nodes' masks name would not be sent"


def test_no_mask_stands_behind_the_last_token_that_is_wanted() -> None:
    model = Watched(with_masks(perfect, perfect))
    proposer = proposer_of(model)
    proposer.open(PROMPT, SAMPLING, end=len(PROMPT) + 3)
    assert proposer.work(0.0) is not None
    assert model.fed == [[PROMPT[-1], MASK]]
    assert tokens_of(sent(proposer, NUMBERS))[:2] == TEXT[:2]


def test_a_node_that_a_mask_named_is_ranked_later_and_named_better() -> None:
    model = Watched(with_masks(perfect, disagreeing))
    proposer = proposer_of(model)
    proposer.open(PROMPT, SAMPLING, end=200)
    for _ in range(6):
        proposer.work(0.0)
    named = tokens_of(sent(proposer, NUMBERS))
    assert named[:4] == TEXT[:4]
    assert set(TEXT[:8]) <= set(named)


class Recorded(EagerModel):
    """A real draft that keeps what its last call said."""

    said: Ranked

    def rank(self, segments: Sequence[Segment], k: int) -> list[Ranked]:
        [self.said] = super().rank(segments, k)
        return [self.said]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_mask_is_ranked_as_text_with_the_noise_of_its_place(
    temperature: float,
) -> None:
    draft, params, prompt = perturbed(1, 0.02), SamplingParams(temperature, seed=5), prompt_of(20)
    masks = Masks(295, 2)
    model = Recorded(draft, rows=1, capacity=1024, max_nodes=128)
    proposer = Draft(model, masks).proposer(0, knowledge(), Prices())
    proposer.open(prompt, params, 200)
    assert proposer.work(0.0) is not None
    assert len(model.said.ids) == 3
    for behind in range(3):
        text = [*prompt, *[masks.token] * behind]
        fresh = ModelSequence(EagerModel(draft, rows=1, capacity=64, max_nodes=32), 0, params)
        fresh.extend(text[:-1])
        whole = fresh.rank(TokenTree.chain(text[-1:]), [0], 8)
        assert model.said.ids[behind].tolist() == whole.ids[0].tolist()
