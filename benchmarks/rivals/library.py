"""Arms of transformers: plain generation, assisted generation and prompt lookup."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.rivals.arm import Hear, Plays
from outrider.text.completion import Request

PLAIN = "transformers"
ASSISTED, CHAIN, LOOKUP = f"{PLAIN} assisted", f"{PLAIN} assisted 4", f"{PLAIN} lookup"
ARMS = (PLAIN, ASSISTED, CHAIN, LOOKUP)
"""ASSISTED drafts as the library does by default: up to 20 tokens, fewer where the assistant is
unsure. LOOKUP proposes 10 tokens at a time, as in the library's own examples.
"""

CHAINS = {
    CHAIN: {
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
}
"""Settings of the assistant that differ from the library's defaults."""


class _Streamer:
    """Hands over tokens as generate() streams them: it calls put() for the prompt, then for every
    step's tokens, and end() at the end.
    """

    def __init__(self, hear: Hear) -> None:
        self._hear, self._prompt = hear, True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self._hear(value.flatten().tolist())
        self._prompt = False

    def end(self) -> None:
        """Nothing is held back."""


class Library:
    """A target and its assistant in transformers. threads: of this process while it generates"""

    def __init__(self, target: Path, draft: Path, dtype: torch.dtype, threads: int) -> None:
        load: Any = AutoModelForCausalLM.from_pretrained
        self._target, self._draft = (load(model, dtype=dtype) for model in (target, draft))
        self._threads, self._passes = threads, 0
        self._target.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self._passes += 1

    @torch.inference_mode()
    def play(self, arm: str, request: Request, hear: Hear) -> int:
        """Generate greedily."""
        for name in CHAINS[CHAIN]:
            setattr(self._draft.generation_config, name, CHAINS.get(arm, {}).get(name))
        ids, stops, self._passes = torch.tensor([list(request.ids)]), sorted(request.stop_ids), 0
        settings: Any = GenerationConfig
        config = settings(
            do_sample=False,
            max_new_tokens=request.max_new_tokens,
            eos_token_id=stops or None,
            pad_token_id=stops[0] if stops else 0,
            prompt_lookup_num_tokens=10 if arm == LOOKUP else None,
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                streamer=_Streamer(hear),
                assistant_model=self._draft if arm in (ASSISTED, CHAIN) else None,
            )
        finally:
            torch.set_num_threads(threads)
        return self._passes

    def arms(self) -> Plays:
        return {arm: partial(self.play, arm) for arm in ARMS}
