"""A draft of fewer bits proposes most of its target's tokens, and is told from the whole one."""

from __future__ import annotations

import pytest

from inference.engine.sessions.local_session import LocalSession
from inference.loop.decode import Step
from inference.model.quantized import Quantization, quantize
from inference.sampling import SamplingParams
from outrider.draft_methods import find_draft
from outrider.models.capacity import Capacity
from outrider.models.loading import Checkpoint
from outrider.options.groups import DeviceOptions, QuantizationOptions
from tests.support import pairs
from tests.support.pairs import rounds, speculated

PROMPT = pairs.prompt_of(9)


def test_int8_of_the_targets_own_weights_proposes_most_of_its_tokens() -> None:
    served, draft, steps = pairs.engine(pairs.decoder(1)), pairs.decoder(1), list[Step]()
    quantize(draft, "int8")
    session = LocalSession(served)
    made = speculated(session, rounds(draft), PROMPT, SamplingParams(), 40, steps.append)
    assert len(made) == 40
    assert len([step for step in steps if step.tokens]) <= 20


def found(quantization: Quantization | None = None) -> Checkpoint:
    """The embedded draft."""
    draft = find_draft(QuantizationOptions(draft_quantization=quantization))
    assert isinstance(draft.model, Checkpoint)
    return draft.model


def test_a_draft_is_loaded_as_its_flag_says(capsys: pytest.CaptureFixture[str]) -> None:
    found("int8").load(DeviceOptions(), Capacity(1, 64, 8, 16))
    assert "float32, int8 matrices on cpu" in capsys.readouterr().err


def test_drafts_that_compute_differently_have_fingerprints_of_their_own() -> None:
    drafts = [found(), found("int8"), found("int4")]
    assert len({draft.fingerprint()[:16] for draft in drafts}) == len(drafts)
    assert all(len(draft.fingerprint()) == 32 for draft in drafts)
