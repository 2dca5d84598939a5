"""The study on recorded texts: a target that repeats what was recorded, on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.regret.arms import ALONE, HYBRID
from benchmarks.regret.dial import Text
from benchmarks.regret.models import Asked, KeptTexts, text_key
from benchmarks.regret.recorded import markdown, play, recorded_texts
from inference.draft_tuning import TUNING
from inference.errors import InvalidRequest
from inference.sampling import SamplingParams
from tests.support.scripted_models import VOCABULARY, ScriptedModel, useless

TEXT = Text((5, 6, 7), SamplingParams().on_the_wire(), (8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 8, 9) * 3)


def test_a_text_that_repeats_itself_is_copied_in_few_passes() -> None:
    draft = ScriptedModel(useless, capacity=512 + TUNING.room)
    played = play([ALONE, HYBRID], ["edits"], [TEXT], draft, VOCABULARY, round_trip=20)
    alone, hybrid = (played.results[arm.name] for arm in (ALONE, HYBRID))
    assert [one.length for one in (*alone.readings, *hybrid.readings)] == [len(TEXT.tokens)] * 2
    assert hybrid.total("forwards") < alone.total("forwards") / 2
    assert hybrid.token_ms < alone.token_ms / 2
    assert "| 20:0 | edits | hybrid | 1 |" in markdown(played)


def test_a_text_that_was_not_recorded_is_refused(tmp_path: Path) -> None:
    kept = KeptTexts(tmp_path / "texts.json")
    kept.add(text_key(0.0, 2, 0, (5, 6)), (7, 8))
    asked = [Asked("code", (5, 6)), Asked("code", (6, 7))]
    assert recorded_texts(asked[:1], 2, kept)[0].tokens == (7, 8)
    with pytest.raises(InvalidRequest, match="text 1 of 2 tokens is not among"):
        recorded_texts(asked, 2, kept)
