"""Prompts of the study: pieces of Python, which the target continues."""

from __future__ import annotations

import json
from pathlib import Path

TOKENS = 160
"""Tokens of each text."""

SEED = 11
"""Seed of the first text; the ones after it have the next ones."""

HELD_OUT_SEEDS = (101, 201, 301)
"""Seeds of the first text of each reading of HELD_OUT; at temperature 0 all are the same."""

_PROMPTS = json.loads(Path(__file__).with_name("prompts.json").read_text(encoding="utf-8"))
PROMPTS: tuple[str, ...] = tuple(_PROMPTS["main"])
HELD_OUT: tuple[str, ...] = tuple(_PROMPTS["held_out"])
"""Nothing was tuned on texts after these."""
