"""Teach the embedded draft to name four tokens in one call: a checkpoint of its own.

    python -m benchmarks.training.block --out inference/data/block_draft

The draft gets one more embedding, the mask. A node's masks stand for tokens that are not known yet
and say what may follow them, as PARD trains it (An et al., arXiv 2504.18583). The checkpoint has
PARD's published format. All that a mask is taught is what the target says at its place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.harness import Folder, run
from benchmarks.training.corpus import TrainingFlags, prepared, read_texts
from benchmarks.training.pair import CONTEXT, amend_json, ask_teacher, draft_batches, save_model
from benchmarks.training.trainer import BATCH_TOKENS, Trainer, cut_windows, token_stream
from outrider.models.directories import EMBEDDED

POSITIONS = 4
"""Tokens that a call names: one behind the node itself, and one behind each of its masks."""

ANCHORS = 0.25
"""Share of a window's tokens that get masks in a step."""

OWN_TEXTS, OWN_PROMPT, OWN_LENGTH = 256, 64, 256
"""Texts of the target itself that are learnt from, their prompts' tokens and their whole length."""

TEMPERATURES = (0.0, 0.7, 1.0)
"""Temperatures of the target's own texts."""

RATE = 0.5
"""Part of the rates that the draft was trained with from the beginning."""


class Window(NamedTuple):
    """A batch with masks: for each row its tokens, then the masks of offset 1, then those of 2.

    places: where each of these stands, and whose answer of the teacher it learns
    """

    tokens: Tensor  # [B, N]
    places: Tensor  # [N]
    sight: Tensor  # [1, 1, N, N] bool


def with_mask(draft: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return the draft with one more embedding, the mask: at first the mean of the others."""
    config = draft.config
    mask = config.vocab_size
    weights = draft.state_dict()
    config.vocab_size = mask + 1
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        known = weights[name]
        weights[name] = torch.cat([known, known.mean(0, keepdim=True)])
    made = LlamaForCausalLM(config)
    made.load_state_dict(weights)
    return made


def masked(inputs: Tensor, mask: int, anchors: Tensor) -> Window:
    """Put POSITIONS - 1 masks behind each anchor. A mask sees the text up to its anchor and the
    masks between.

    inputs: [B, L]
    anchors: [A]
    """
    rows, length = inputs.shape
    offsets = torch.arange(1, POSITIONS)
    behind = (anchors + offsets[:, None]).flatten()  # [(K - 1) A] places of the masks
    of = anchors.repeat(POSITIONS - 1)
    offset = offsets.repeat_interleave(len(anchors))
    tokens = torch.cat([inputs, torch.full((rows, len(behind)), mask)], dim=1)
    text = torch.arange(length)
    sight = torch.zeros(len(tokens[0]), len(tokens[0]), dtype=torch.bool)
    sight[:length, :length] = text[None] <= text[:, None]
    sight[length:, :length] = text[None] <= of[:, None]
    sight[length:, length:] = (of[:, None] == of[None]) & (offset[None] <= offset[:, None])
    return Window(tokens, torch.cat([text, behind]), sight[None, None])


def losses(model: LlamaForCausalLM, window: Window, answers: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy with the teacher's answers at each place: [B, N]."""
    rows = len(window.tokens)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(
            input_ids=window.tokens,
            position_ids=window.places.expand(rows, -1),
            attention_mask=window.sight.expand(rows, -1, -1, -1),
            use_cache=False,
        ).logits
    said = logits.float()[..., :-1].log_softmax(-1)  # a mask is never named
    ids, shares = (part[:, window.places] for part in answers)
    losses: Tensor = -(shares.float() * said.gather(-1, ids.long())).sum(-1)
    return losses


@torch.no_grad()
def own_texts(target: LlamaForCausalLM, stream: Tensor, generator: torch.Generator) -> Tensor:
    """Return what the target says after beginnings of windows: [OWN_TEXTS, OWN_LENGTH]."""
    inputs, _ = cut_windows(stream, 0, OWN_LENGTH)
    rows = torch.randperm(len(inputs), generator=generator)[:OWN_TEXTS]
    text = inputs[rows, :OWN_PROMPT]
    heat = torch.tensor(TEMPERATURES)[torch.arange(OWN_TEXTS) % len(TEMPERATURES), None]
    fed, past = text, None
    while text.shape[1] < OWN_LENGTH:
        with torch.autocast("cpu", torch.bfloat16):
            out = target(input_ids=fed, past_key_values=past, use_cache=True)
        noise = torch.rand(OWN_TEXTS, out.logits.shape[-1], generator=generator)
        scores = out.logits[:, -1].float() - heat * torch.log(-torch.log(noise.clamp(1e-9)))
        fed, past = scores.argmax(-1, keepdim=True), out.past_key_values
        text = torch.cat([text, fed], dim=1)
    return text


def sources_of(
    target: LlamaForCausalLM, stream: Tensor, steps: int, generator: torch.Generator
) -> list[Tensor]:
    """Return the batches [B, L] that are learnt from: of the text, and the target's own."""
    made = own_texts(target, stream, generator)
    own = list(torch.split(made, BATCH_TOKENS // OWN_LENGTH))
    text = draft_batches(stream, CONTEXT // 4, generator)
    return [*own, *text[: max(1, steps // 2 - len(own))]]


def _order(count: int, generator: torch.Generator) -> Iterator[int]:
    while True:
        yield from torch.randperm(count, generator=generator).tolist()


def train(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, stream: Tensor, steps: int, seed: int
) -> LlamaForCausalLM:
    """Return the draft with a mask, taught on the target's answers to every batch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = with_mask(draft)
    sources = sources_of(target, stream, steps, generator)
    answers = [ask_teacher(target, inputs) for inputs in sources]
    print(f"{len(sources)} batches asked", flush=True)
    trainer = Trainer(model.named_parameters(), "block draft", steps, RATE)
    for _, index in zip(range(steps), _order(len(sources), generator), strict=False):
        inputs = sources[index]
        most = inputs.shape[1] - POSITIONS + 1
        anchors = torch.randperm(most, generator=generator)[: int(ANCHORS * most)]
        window = masked(inputs, model.config.vocab_size - 1, anchors)
        loss = losses(model, window, answers[index])
        length = inputs.shape[1]
        trainer.update(loss[:, :length].mean() + loss[:, length:].mean())
    model.train(False)
    return model


def write(model: LlamaForCausalLM, pair: Path, folder: Path) -> None:
    """Write the checkpoint with the fields that name its mask and its positions."""
    mask = model.config.vocab_size - 1
    save_model(model, PreTrainedTokenizerFast.from_pretrained(pair / "draft"), folder)
    amend_json(folder / "config.json", pard_token=mask, para_num=POSITIONS, spd_type="pard")


class Options(TrainingFlags):
    pair: Folder = EMBEDDED
    out: Folder = EMBEDDED / "block_draft"
    steps: int = 500


def main(given: Options) -> None:
    listing = prepared(given, given.pair)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given.pair / "draft")
    stream = token_stream(tokenizer, read_texts(listing, "train"))
    target, draft = (
        LlamaForCausalLM.from_pretrained(given.pair / name, dtype=torch.float32)
        for name in ("target", "draft")
    )
    target.train(False)
    began = time.process_time()
    model = train(target, draft, stream, given.steps, given.seed)
    print(f"{time.process_time() - began:.0f} CPU seconds", flush=True)
    write(model, given.pair, given.out)


if __name__ == "__main__":
    run(Options, main)
