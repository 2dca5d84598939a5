"""Loads and a model's shape that tests of planning share."""

from __future__ import annotations

from inference.model.config import read_raw_config
from tests.support.repository import ROOT

LOADS = ROOT / "benchmarks/loads"
USES = ("chat", "code", "batch")
"""Names of the loads: what they imitate."""

LLAMA_8B = read_raw_config(ROOT / "docs/shapes/llama-3.1-8b")
