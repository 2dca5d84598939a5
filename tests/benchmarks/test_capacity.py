"""A small crowd, visitors and tenants on the virtual clock: their figures add up."""

from __future__ import annotations

import json

import pytest

from tests.support.repository import run_module

pytestmark = pytest.mark.extended

Rows = dict[str, list[dict[str, str]]]
SIZES = ["--cells", "neuron:256:0.8:16", "--users", "12", "--settle", "0.2", "--seconds", "0.6"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    file = tmp_path_factory.mktemp("capacity") / "rows.json"
    flags = ["--parts", "crowd,arrivals,tenants", "--seeds", "1", *SIZES, "--json", str(file)]
    run_module("benchmarks.capacity", *flags)
    rows: Rows = json.loads(file.read_text(encoding="utf-8"))
    return rows


def test_a_crowd_without_drafts_gets_a_token_each_from_every_forward(parts: Rows) -> None:
    alone, growing = parts["crowd"]
    forwards = 1e3 / float(alone["forward, ms"])
    assert float(alone["tokens/s"]) == pytest.approx(16 * forwards, rel=0.03)
    assert float(growing["tokens/s"]) > 1.8 * float(alone["tokens/s"])


def test_visitors_get_their_texts_sooner_with_drafts(parts: Rows) -> None:
    alone, growing = parts["arrivals"]
    assert alone["users"] == growing["users"] == "12"
    assert float(growing["mean per token p50"]) < 0.5 * float(alone["mean per token p50"])


def test_no_tenant_pays_for_a_wide_one(parts: Rows) -> None:
    assert len(parts["tenants"]) == 6
    assert all(float(row["slowest narrow, of root-only"]) >= 0.98 for row in parts["tenants"])
