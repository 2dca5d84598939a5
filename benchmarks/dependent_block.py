"""Show what a target's states are worth to a block draft: PARD-2's target-dependent mode, with the
embedded pair.

    python -m benchmarks.dependent_block --out DIR [--steps 60] [--texts 4] [--new 64]

Only a projection of the target's states is trained, on the text that the pair was trained on; the
embedded block draft stays as it is. DIR gets a checkpoint in PARD-2's published format. Then the
target writes texts after held-out prompts under the shared noise, and at every token the draft
ranks it with its masks, as it does when it drafts: with the target's states, and without. The table
shows how often the target's token is the first, and one of the first 2, 4 and 8. Offset 0 is the
node itself, the others are its masks.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.agreement import TEMPERATURES, Prompt, held_out_prompts, load_one, write_texts
from benchmarks.corpus import checked_listing, read_texts
from benchmarks.guesses import K, Reading, shares
from benchmarks.harness import command, cpu_decoder, table_lines
from benchmarks.train_block import ANCHORS, POSITIONS, losses, masked
from benchmarks.train_pair import (
    CONTEXT,
    amend_json,
    ask_teacher,
    draft_batches,
    token_stream,
)
from inference.backends.eager import EagerModel
from inference.backends.led_sequence import RowFeatures
from inference.backends.pard import DependentModel, RenewedSequence
from inference.backends.sequence import ModelSequence
from inference.backends.shared_sequence import TargetRow
from inference.command import run_command
from inference.model.config import read_config
from inference.model.pard import load_projection
from inference.sampling import SamplingParams
from inference.text import Tokenizer
from inference.tree import TokenTree
from outrider.draft_methods.block import read_masks
from outrider.models import EMBEDDED

STATES = (-1, -3, -5)
"""Of the target's 7; published checkpoints read four of their targets'."""

SCALE, RATE = 0.02, 1e-3
SHARE = 8
"""One in so many files of the training text is learnt from."""

_SLOTS = 1024


@torch.no_grad()
def states_before(target: LlamaForCausalLM, inputs: Tensor) -> Tensor:  # [B, L, F]
    """Return the target's states at the token before each; 0 for the first."""
    with torch.autocast("cpu", torch.bfloat16):
        said = target.model(input_ids=inputs, output_hidden_states=True, use_cache=False)
    states = torch.cat([said.hidden_states[state] for state in STATES], -1).float()
    return F.pad(states[:, :-1], (0, 0, 1, 0))


@contextmanager
def added_to(draft: LlamaForCausalLM, added: Tensor) -> Iterator[None]:
    """Add this to the embeddings of the draft's next calls."""
    embeddings = draft.get_input_embeddings()
    handle = embeddings.register_forward_hook(lambda _, given, out: out + added)
    try:
        yield
    finally:
        handle.remove()


def train(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, stream: Tensor, steps: int, seed: int
) -> Tensor:
    """Return the projection [hidden of the draft, F], taught what the target says."""
    generator = torch.Generator().manual_seed(seed)
    projection = nn.Linear(
        len(STATES) * target.config.hidden_size, draft.config.hidden_size, bias=False
    )
    nn.init.zeros_(projection.weight)
    draft.requires_grad_(False)
    optimizer = torch.optim.AdamW(projection.parameters(), RATE, (0.9, 0.98), weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    sources = draft_batches(stream, CONTEXT // 4, generator)[:steps]
    for step, inputs in enumerate(sources, 1):
        length = inputs.shape[1]
        most = length - POSITIONS + 1
        anchors = torch.randperm(most, generator=generator)[: int(ANCHORS * most)]
        window = masked(inputs, draft.config.vocab_size - 1, anchors)
        states = states_before(target, inputs)
        states = torch.cat([states, states[:, anchors.repeat(POSITIONS - 1)]], 1)
        with added_to(draft, SCALE * projection(states)):
            loss = losses(draft, window, ask_teacher(target, inputs))
        mean = loss[:, :length].mean() + loss[:, length:].mean()
        torch.autograd.backward(mean)
        optimizer.step()
        optimizer.zero_grad()
        falling.step()
        if step == 1 or step % 20 == 0:
            print(f"step {step}/{len(sources)} loss {mean.item():.3f}", flush=True)
    return projection.weight.detach()


def write(weight: Tensor, folder: Path) -> None:
    """Write the embedded block draft with this projection."""
    shutil.copytree(EMBEDDED / "block_draft", folder, dirs_exist_ok=True)
    amend_json(
        folder / "config.json",
        spd_type="pard2",
        pard2=True,
        pard2_scale=SCALE,
        pard2_target_dim=weight.shape[1],
        pard2_target_layers=list(STATES),
        pard2_proj_bias=False,
    )
    torch.save({"target_proj.weight": weight}, folder / "warp_model.bin")


def models(folder: Path, tokenizer: Tokenizer) -> tuple[EagerModel, DependentModel]:
    """The embedded target, and the draft in this folder beside it."""
    target, draft = (
        cpu_decoder(directory, _SLOTS, tokenizer.vocabulary, torch.float32)
        for directory in (EMBEDDED / "target", folder)
    )
    sizes = {"rows": 1, "capacity": _SLOTS, "max_nodes": 256}
    keeper = EagerModel(target, **sizes)
    projection = load_projection(folder / "warp_model.bin", draft, target)
    masks = read_masks(folder, draft.config.vocab_size)
    keeper.keep_features(projection.kept)
    return keeper, DependentModel(draft, projection, masks, **sizes)


def read(
    target: EagerModel,
    draft: DependentModel,
    prompt: Prompt,
    written: list[int],
    params: SamplingParams,
    *,
    follows: bool,
) -> Reading:
    """Rank each token of the text and the masks behind it, before the target has computed it."""
    there = ModelSequence(target, 0, params)
    features = RowFeatures(target, lambda: TargetRow(0, there.slots))
    here = (
        RenewedSequence(draft, 0, params, features=features)
        if follows
        else ModelSequence(draft, 0, params)
    )
    there.extend(prompt.ids[:-1])
    here.extend(prompt.ids[:-1])
    answers, masks = [], [draft.masks.token] * draft.masks.most
    for token in (prompt.ids[-1], *written[:-1]):
        tree = TokenTree.chain([token, *masks])
        answers.append(here.rank(tree, range(len(tree)), K))
        here.commit(tree, [])
        there.extend([token])
    ids, scores = (np.stack(part) for part in zip(*answers, strict=True))
    return Reading(params.temperature, written, ids, scores)


def table(folder: Path, texts: int, new: int) -> Iterator[list[str]]:
    """How often the target's token is among the first, with its states and without."""
    tokenizer = Tokenizer(EMBEDDED / "target")
    jobs = [
        (prompt, SamplingParams(temperature, seed=index))
        for temperature in TEMPERATURES
        for index, prompt in enumerate(held_out_prompts(tokenizer, texts))
    ]
    prompts, params = zip(*jobs, strict=True)
    length = max(len(prompt.ids) for prompt in prompts) + new
    writer = load_one(EMBEDDED / "target", tokenizer, rows=len(jobs), length=length)
    stop_ids = read_config(EMBEDDED / "target").stop_ids
    written = write_texts(writer, prompts, params, new, stop_ids)
    target, draft = models(folder, tokenizer)
    for states, follows in (("without", False), ("with", True)):
        readings = [
            read(target, draft, prompt, said, one, follows=follows)
            for (prompt, one), said in zip(jobs, written, strict=True)
        ]
        yield from ([states, *row] for row in shares(readings))


def main() -> int:
    parser = command(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--texts", type=int, default=4, help="prompts")
    parser.add_argument("--new", type=int, default=64, help="tokens of a text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--allow-different-files", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    listing = checked_listing(EMBEDDED / "training_files.json", given.allow_different_files)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(EMBEDDED / "draft")
    stream = token_stream(tokenizer, read_texts(listing, "train")[::SHARE])
    target, draft = (
        LlamaForCausalLM.from_pretrained(EMBEDDED / name, dtype=torch.float32).train(False)
        for name in ("target", "block_draft")
    )
    began = time.process_time()
    write(train(target, draft, stream, given.steps, given.seed), given.out)
    print(f"trained in {time.process_time() - began:.0f} CPU seconds", flush=True)
    heads = ("states", "T", "offset", "positions", "first", "of 2", "of 4", "of 8")
    print("\n".join(table_lines(heads, table(given.out, given.texts, given.new))))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, debug=False))
