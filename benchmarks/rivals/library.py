"""Arms of transformers: plain generation, assisted generation and prompt lookup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.rivals.arm import Arm, Hear, Told
from inference.model.config import read_config
from inference.text import Tokenizer

PLAIN = "transformers"
LOOKUP_TOKENS = 10
"""Tokens that prompt lookup names at a time, as in the library's own examples."""

CHAIN = 4
"""Length of the assistant's chain in the arm that fixes it."""


class Help(NamedTuple):
    """Drafting of one arm. The fields behind `assisted` are those of the assistant's
    GenerationConfig; None leaves the library's default.

    lookup: tokens that prompt lookup names at a time; None for no lookup
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
    """A target and its assistant in transformers, with stop ids as for every other engine."""

    def __init__(self, target: Path, draft: Path, dtype: torch.dtype) -> None:
        load: Any = AutoModelForCausalLM.from_pretrained
        self._target, self._draft = (load(model, dtype=dtype) for model in (target, draft))
        self._stop_ids = sorted(read_config(target).stop_ids | Tokenizer(target).end_ids)
        self._passes = 0
        self._target.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self._passes += 1

    @torch.inference_mode()
    def play(self, help_: Help, prompt: Sequence[int], tokens: int, hear: Hear) -> Told:
        """Generate greedily with this help."""
        drafts = self._draft.generation_config
        for name in Help._fields[2:]:
            setattr(drafts, name, getattr(help_, name))
        ids, self._passes = torch.tensor([prompt]), 0
        settings: Any = GenerationConfig
        made = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings(
                do_sample=False,
                max_new_tokens=tokens,
                eos_token_id=self._stop_ids or None,
                prompt_lookup_num_tokens=help_.lookup,
                pad_token_id=self._stop_ids[0] if self._stop_ids else 0,
            ),
            streamer=_Streamer(hear),
            assistant_model=self._draft if help_.assisted else None,
        )
        return Told(made.shape[1] - len(prompt), self._passes - 1)


@contextmanager
def library_arms(
    target: Path, draft: Path, dtype: torch.dtype, threads: int
) -> Iterator[list[Arm]]:
    """The arms of HELPS on one pair of models."""
    library = Library(target, draft, dtype)
    yield [Arm(name, threads, partial(library.play, help_)) for name, help_ in HELPS.items()]
