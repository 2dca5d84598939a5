"""Flags that make a draft cheaper to call belong to roles that load a draft's checkpoint."""

from __future__ import annotations

import pytest

from inference.errors import InvalidRequest
from outrider.options.parsing import parse
from outrider.options.roles import DraftRole, FusedTargetRole

QUANTIZED = ["--draft_quantization", "int8"]


def test_a_checkpoint_alone_is_reduced() -> None:
    with pytest.raises(InvalidRequest, match="--draft_quantization is for --draft model, got"):
        DraftRole(draft="copy", draft_quantization="int8")
    with pytest.raises(InvalidRequest, match="--draft_head_tokens is for --draft model, got"):
        DraftRole(draft="copy", draft_head_tokens=100)
    assert FusedTargetRole(draft="model,copy", draft_quantization="int4").draft_head_tokens is None


def test_a_target_is_never_reduced(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--role", "target", *QUANTIZED])
    said = capsys.readouterr().err
    assert "--draft_quantization" in said
    assert "draft" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("flag", "value", "needed"),
    [("draft_quantization", "int3", "int8, int4"), ("draft_head_tokens", 10, "64")],
)
def test_other_values_are_refused_with_what_is_needed(
    flag: str, value: object, needed: str
) -> None:
    with pytest.raises(InvalidRequest, match=needed):
        DraftRole(**{flag: value})
