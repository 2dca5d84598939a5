"""The study's target: the embedded one, which is at home in Python code."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.regret.prefixes import Prefixes
from benchmarks.regret.stage import SEQUENCE_LENGTH
from benchmarks.regret.study import Study
from benchmarks.regret.texts import PROMPTS, SEED, TOKENS
from inference.model.checkpoint import load_decoder
from inference.text import Tokenizer
from outrider.models import EMBEDDED


def embedded_study(
    prompts: Sequence[str] = PROMPTS, tokens: int = TOKENS, seed: int = SEED
) -> Study:
    """Of the embedded target, on these prompts; seed: of the first text."""
    tokenizer = Tokenizer(EMBEDDED / "target")
    decoder = load_decoder(
        EMBEDDED / "target",
        positions=SEQUENCE_LENGTH,
        vocabulary=tokenizer.vocabulary,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return Study(lambda: Prefixes(decoder), tokenizer.encode, prompts, tokens, seed)
