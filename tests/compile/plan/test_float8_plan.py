"""What is planned for a target of 8-bit matrices, and who takes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compile.compile_options import CompileOptions
from compile.plan.device import device_of
from compile.plan.fit import check_fits
from compile.plan.memory import footprint
from compile.request import find_checkpoint, make_request
from compile.spec import CompileSpec
from inference.errors import LimitExceeded
from inference.model.config import read_config
from tests.support.repository import ROOT

EIGHT = ROOT / "docs/shapes/llama-3.1-8b"


def spec(**changes: object) -> CompileSpec:
    options = CompileOptions(
        model=str(EIGHT), target="trn1", tensor_parallel=2, rows=1, quick=True, dry_run=True
    )
    return replace(make_request(options, find_checkpoint(options)).spec, **changes)  # type: ignore[arg-type]


def test_matrices_and_head_take_half_and_embeddings_and_caches_as_much() -> None:
    config = read_config(EIGHT)
    wide, narrow = (footprint(config, spec(dtype=dtype)) for dtype in ("bfloat16", "fp8"))
    table = config.vocab_size * config.hidden_size // 2  # of one rank
    assert narrow.weights == pytest.approx((wide.weights - 2 * table) / 2 + 2 * table, rel=1e-4)
    assert narrow.cache == wide.cache
    assert narrow.noise == wide.noise


def test_what_does_not_fit_is_told_that_it_would_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    config, small = read_config(EIGHT), replace(device_of("trn1"), memory=6 << 30)
    monkeypatch.setattr("compile.plan.fit.device_of", lambda target: small)
    with pytest.raises(LimitExceeded, match="--dtype fp8"):
        check_fits(config, spec())
    with pytest.raises(LimitExceeded, match=r"Would fit: (?!.*fp8)(?!.*trn2)"):
        check_fits(config, spec(dtype="fp8", rows=1, tensor_parallel=1))
