"""The study's block draft: what its masks say, and what they would say if they knew more."""

from __future__ import annotations

import pytest

from benchmarks.regret.block import BlockPair, Words, arms
from benchmarks.regret.bounds import BOUNDS, SURE, BoundPair, KnowingModel
from benchmarks.regret.dial import MISSES
from benchmarks.regret.pair import PrefixModel
from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import Pair, laptop, virtual_stage
from benchmarks.regret.study import Cell, Study, play
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from tests.support import pairs

PROMPT = tuple(range(3, 23))
PARAMS = SamplingParams(0.8, seed=3)


@pytest.fixture
def prefixes() -> Prefixes:
    return Prefixes(pairs.decoder(1))


@pytest.fixture
def words() -> Words:
    return Words(pairs.MASKS, Prefixes(pairs.decoder(2)))


def test_masks_that_know_the_tokens_between_name_the_targets_own(
    prefixes: Prefixes, words: Words
) -> None:
    target = PrefixModel(prefixes, 0.0)
    node, mask = prefixes.after(PROMPT), words.masks.token
    behind = [prefixes.after([*PROMPT, *[mask] * masks]) for masks in (1, 2, 3)]
    own, at = list[int](), node
    for _ in range(4):
        own.append(target.choices([at], PARAMS).item())
        at = prefixes.child(at, own[-1])
    knowing, plain = (KnowingModel(prefixes, target, words, share) for share in (1.0, 0.0))
    assert knowing.choices(behind, PARAMS).tolist() == own[1:]
    assert plain.choices(behind, PARAMS).tolist() != own[1:]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_bound_makes_the_targets_own_text(words: Words, temperature: float) -> None:
    study = Study(lambda: Prefixes(pairs.decoder(1)), lambda text: PROMPT, ("",), 24)
    cell = Cell(20, MISSES.name, temperature)
    plain, among = study.pair(cell), {arm.name: arm for arm in arms(words.masks)}
    made = list[tuple[Pair, str]]()
    for bound in (BOUNDS[-1], BOUNDS[4]):
        made.append((BoundPair(study.prefixes, bound, plain, words), bound.arm))
    made.append((BlockPair(study.prefixes, MISSES, plain, words), "block"))
    for pair, name in made:
        play(among[name], virtual_stage(pair, 0.02), pair.texts)  # NotTheTargetsText otherwise


def test_a_sure_draft_is_right_wherever_it_does_not_miss(prefixes: Prefixes) -> None:
    draft, target = SURE.draft(prefixes), PrefixModel(prefixes, 0.0)
    after = [prefixes.after([*PROMPT, token]) for token in range(280)]
    right = draft.choices(after, PARAMS) == target.choices(after, PARAMS)
    assert 0.9 < right.mean() < 1


def test_fewer_bits_are_a_quicker_call_at_one_node() -> None:
    names = ("bf16-laptop-computed", "int8-laptop-computed", "int4-laptop-ratios")
    slow, study, ratios = (laptop(name) for name in names)
    assert slow.seconds(1, 1, 256) > study.seconds(1, 1, 256) > ratios.seconds(1, 1, 256)
    assert ratios.seconds(1, 16, 256) > study.seconds(1, 16, 256)
    with pytest.raises(InvalidRequest, match="no profile"):
        laptop("int3-laptop-computed")
