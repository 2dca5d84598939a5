"""Trainer of all models, and the batches that it takes from a text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

BEGIN_ID, END_ID = 0, 1
BATCH_TOKENS = 2048
MUON_RATE, ADAM_RATE = 0.02, 4e-3


class Trainer:
    """Muon for the hidden matrices, AdamW for the rest, warm-up and then linear decay to zero.

    learning: parameters by name
    """

    def __init__(self, learning: Iterable[tuple[str, Tensor]], name: str, steps: int) -> None:
        named = list(learning)
        hidden = [value for key, value in named if value.ndim == 2 and not _speaks(key)]
        other = [value for key, value in named if value.ndim != 2 or _speaks(key)]
        self.learning = [value for _, value in named]
        self.name, self.steps, self.step = name, steps, 0
        self.warm_up = max(1, min(50, steps // 10))
        muon = torch.optim.Muon(hidden, lr=MUON_RATE, weight_decay=0.05)
        adam = torch.optim.AdamW(other, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.optimizers = [(muon, MUON_RATE), (adam, ADAM_RATE)]
        self.started = time.monotonic()

    def update(self, loss: Tensor) -> None:
        """One step of both optimizers down the gradient of the loss."""
        left = (self.steps - self.step) / (self.steps - self.warm_up + 1)
        scale = min((self.step + 1) / self.warm_up, left)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.learning, 1.0)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * scale
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        if self.step % 20 == 0 or self.step == self.steps:
            seconds = time.monotonic() - self.started
            place = f"{self.name} step {self.step}/{self.steps}"
            print(f"{place} loss {loss.item():.3f} {seconds:.0f} s", flush=True)


def _speaks(name: str) -> bool:
    """Whether a parameter is of a model's first or last layer."""
    return "embed" in name or "lm_head" in name


def token_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """All documents in one row: begin token, text, end token."""
    ids = (tokenizer(text, verbose=False)["input_ids"] for text in texts)
    return torch.tensor([token for text in ids for token in (*text, END_ID)])


def batches(
    stream: Tensor, length: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, ...]]:
    """Endless shuffled batches of inputs (a begin token, then length - 1 tokens) and the tokens to
    predict; every pass over the stream is cut at another offset.
    """
    size = BATCH_TOKENS // length
    while True:
        offset = int(torch.randint(length, (1,), generator=generator))
        count = (len(stream) - offset) // length
        labels = stream[offset : offset + count * length].view(count, length)
        inputs = torch.cat([torch.full((count, 1), BEGIN_ID), labels[:, :-1]], dim=1)
        order = torch.randperm(count, generator=generator)
        for rows in order[: count // size * size].view(-1, size):
            yield inputs[rows], labels[rows]
