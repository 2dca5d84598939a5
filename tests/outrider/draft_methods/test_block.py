"""--draft block: a checkpoint in PARD's published format is found, loaded and drafts; others are
refused in one line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference.backends import Masks
from inference.drafters.draft import Draft
from inference.engine.engine import Engine
from inference.engine.local_session import LocalSession
from inference.errors import UnsupportedModel
from inference.order import Decode
from inference.planner.prices import Prices
from inference.sampling import SamplingParams
from outrider.draft_methods import find_draft
from outrider.draft_methods.block import PUBLISHED_POSITIONS
from outrider.models.capacity import Capacity
from outrider.models.loading import find_checkpoint
from outrider.options.roles import DraftRole
from tests.support.drafts import alone, knowledge, text_of
from tests.support.models import write_checkpoint_with_tokenizer
from tests.support.pairs import prompt_of
from tests.support.refusals import assert_refused

PARD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 520,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "pard_token": 515,
    "spd_type": "pard",
}
"""config.json as PARD publishes it, at a tiny size: ids beyond the tokenizer's are the masks'."""


def target(directory: Path) -> Engine:
    write_checkpoint_with_tokenizer(directory, seed=7)
    model = find_checkpoint(str(directory), "target").load(
        DraftRole(device="cpu"),
        Capacity(1, 128, 64, 64),
    )
    return Engine(model, sequence_length=128, max_tree_nodes=64, vocabulary=512)


def found(directory: Path, **changes: Any) -> Draft:
    """The checkpoint with these changes of its config, loaded."""
    write_checkpoint_with_tokenizer(directory, **PARD | changes)
    role = DraftRole(draft="block", draft_model=str(directory), device="cpu")
    return find_draft(role).load(role, Capacity(1, 128, 300, 256))


def test_a_published_checkpoint_says_which_token_is_its_mask_and_how_many_a_call_names(
    tmp_path: Path,
) -> None:
    assert found(tmp_path).masks == Masks(515, PUBLISHED_POSITIONS - 1)
    assert found(tmp_path, para_num=4).masks == Masks(515, 3)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_published_checkpoint_drafts_and_the_text_is_the_targets_own(
    tmp_path: Path, temperature: float
) -> None:
    draft = found(tmp_path / "pard")
    served, prompt = target(tmp_path / "target"), prompt_of(20)
    params = SamplingParams(temperature, seed=11)
    proposer = draft.proposer(0, knowledge(), Prices(), room=300)
    session, order = LocalSession(served), Decode(len(prompt) + 30)
    made = text_of(prompt, params, session, order, [proposer])
    assert made == alone(LocalSession(served), prompt, params, 30)
    assert proposer.usage.nodes > proposer.usage.calls  # masks were computed


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("pard_token", None, ["no pard_token", "--draft model"]),
        ("pard_token", 520, ["pard_token is 520"]),
        ("pard_token", -1, ["pard_token is -1"]),
        ("para_num", 1, ["para_num is 1"]),
        ("para_num", 99, ["para_num is 99"]),
    ],
)
def test_a_mask_that_is_not_there_or_cannot_be_is_refused(
    tmp_path: Path, field: str, value: int | None, shown: list[str]
) -> None:
    assert_refused(lambda: found(tmp_path, **{field: value}), shown, UnsupportedModel)
