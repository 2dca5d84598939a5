"""Arms of transformers: plain generation, assisted generation and prompt lookup."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.rivals.arm import Hear, Plays
from outrider.text.completion import Request

PLAIN = "transformers"
LOOKUP_TOKENS = 10
"""Tokens that prompt lookup proposes at a time, as in the library's own examples."""

CHAIN = 4
"""Length of the assistant's chain in the arm that fixes it."""


class Help(NamedTuple):
    """Drafting of one arm. The fields behind `assisted` are those of the assistant's
    GenerationConfig; None leaves the library's default.

    lookup: tokens that prompt lookup proposes at a time; None for no lookup
    """

    lookup: int | None = None
    assisted: bool = False
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | None = None
    assistant_confidence_threshold: float | None = None


HELPS = {
    PLAIN: Help(),
    f"{PLAIN} assisted": Help(assisted=True),
    f"{PLAIN} assisted {CHAIN}": Help(None, True, CHAIN, "constant", 0.0),
    f"{PLAIN} lookup": Help(lookup=LOOKUP_TOKENS),
}
"""Every arm by name. The second drafts as the library does by default: up to 20 tokens, fewer where
the assistant is unsure.
"""


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

    def __init__(self, target: Path, draft: Path, dtype: torch.dtype | None, threads: int) -> None:
        load: Any = AutoModelForCausalLM.from_pretrained
        kind = "auto" if dtype is None else dtype
        self._target, self._draft = (load(model, dtype=kind) for model in (target, draft))
        self._threads, self._passes = threads, 0
        self._target.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self._passes += 1

    @torch.inference_mode()
    def play(self, help_: Help, request: Request, hear: Hear) -> int:
        """Generate greedily with this help."""
        drafts = self._draft.generation_config
        for name in Help._fields[2:]:
            setattr(drafts, name, getattr(help_, name))
        ids, stops, self._passes = torch.tensor([list(request.ids)]), sorted(request.stop_ids), 0
        settings: Any = GenerationConfig
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings(
                    do_sample=False,
                    max_new_tokens=request.max_new_tokens,
                    eos_token_id=stops or None,
                    prompt_lookup_num_tokens=help_.lookup,
                    pad_token_id=stops[0] if stops else 0,
                ),
                streamer=_Streamer(hear),
                assistant_model=self._draft if help_.assisted else None,
            )
        finally:
            torch.set_num_threads(threads)
        return self._passes

    def arms(self) -> Plays:
        """The arms of HELPS."""
        return {name: partial(self.play, help_) for name, help_ in HELPS.items()}
