"""Train the embedded pair: one byte-level BPE tokenizer, a Llama target and a Llama draft distilled
from it.

The text is the Python standard library's own source, so nothing is downloaded:

    python -m benchmarks.training.pair --out inference/data
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.harness import Folder, run
from benchmarks.training.corpus import TrainingFlags, prepared, read_texts
from benchmarks.training.trainer import (
    BEGIN_ID,
    END_ID,
    Trainer,
    batches,
    token_stream,
)
from outrider.models.found_model import EMBEDDED

BEGIN, END = "<|begin|>", "<|end|>"
# a draft agrees more often on short tokens: with 2048 of them it was 52 % on held-out files
VOCABULARY = 512
CONTEXT = 1024
TEACHER_TOP = 48
# (share of the target's steps, window length): short windows are cheap, the last ones teach the
# whole context.
STAGES = ((0.70, 256), (0.18, 512), (0.12, 1024))
ROPE_BASE = 10000.0
TARGET_SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
DRAFT_SHAPE = {"hidden_size": 160, "intermediate_size": 352, "num_hidden_layers": 2}


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer; it puts the begin token in front of every text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    untyped: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = untyped(
        tokenizer_object=core,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def make_model(shape: Mapping[str, Any], seed: int) -> LlamaForCausalLM:
    """A fresh Llama model of this shape, with tied embeddings."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        **shape,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_BASE},
        tie_word_embeddings=True,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
    )
    return LlamaForCausalLM(config)


def train_target(stream: torch.Tensor, steps: int, seed: int) -> LlamaForCausalLM:
    """Train the target to predict the text."""
    model = make_model(TARGET_SHAPE, seed)
    lengths = [length for share, length in STAGES for _ in range(round(steps * share))]
    trainer = Trainer(model.named_parameters(), "target", len(lengths))
    generator = torch.Generator().manual_seed(seed)
    sources = {length: batches(stream, length, generator) for _, length in STAGES}
    for length in lengths:
        inputs, labels = next(sources[length])
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=inputs, use_cache=False).logits
        trainer.update(functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()))
    model.train(False)
    return model


def train_draft(
    target: LlamaForCausalLM, stream: torch.Tensor, steps: int, seed: int
) -> LlamaForCausalLM:
    """Distil the target into the draft: cross-entropy with the probabilities of the target's most
    likely tokens, on full windows in every fourth step and on half ones in the others.
    """
    model = make_model(DRAFT_SHAPE, seed + 1)
    trainer = Trainer(model.named_parameters(), "draft", steps)
    generator = torch.Generator().manual_seed(seed + 1)
    whole, half = (batches(stream, length, generator) for length in (CONTEXT, CONTEXT // 2))
    for step in range(steps):
        inputs, _ = next(half if step % 4 else whole)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = target(input_ids=inputs, use_cache=False).logits
            logits = model(input_ids=inputs, use_cache=False).logits
        best = wanted.float().topk(TEACHER_TOP)
        chosen = logits.float().log_softmax(-1).gather(-1, best.indices)
        trainer.update(-(best.values.softmax(-1) * chosen).sum(-1).mean())
    model.train(False)
    return model


def amend_json(path: Path, **fields: object) -> None:
    """Set fields of a JSON file."""
    path.write_text(
        json.dumps(json.loads(path.read_text()) | fields, indent=2, sort_keys=True) + "\n"
    )


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a model as float16 with its tokenizer; readers of the folder never see half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as name:
        new = Path(name)
        ids = {"bos_token_id": BEGIN_ID, "eos_token_id": END_ID, "pad_token_id": END_ID}
        model.generation_config = GenerationConfig.from_dict({**ids, "do_sample": False})
        torch.nn.Module.to(model, dtype=torch.float16)
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        # Readers older than transformers 5 know these two fields only under these names.
        amend_json(new / "config.json", rope_theta=ROPE_BASE)
        amend_json(new / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
        for path in sorted(new.iterdir()):
            path.chmod(0o644)
            path.replace(folder / path.name)


class Options(TrainingFlags):
    threads: int = 2
    out: Folder = EMBEDDED
    """of the pair"""
    steps: int = 2200
    """training steps of the target"""
    draft_steps: int = 5400


def main(options: Options) -> None:
    """Train and write both models, and print what it took."""
    options.out.mkdir(parents=True, exist_ok=True)
    listing = prepared(options, options.out)
    texts = read_texts(listing, "train")
    tokenizer = make_tokenizer(texts)
    stream = token_stream(tokenizer, texts)
    began = time.monotonic()
    target = train_target(stream, options.steps, options.seed)
    save_model(target, tokenizer, options.out / "target")
    seconds = time.monotonic() - began
    stored = LlamaForCausalLM.from_pretrained(options.out / "target", dtype=torch.float32)
    stored.train(False)
    draft = train_draft(stored, stream, options.draft_steps, options.seed)
    save_model(draft, tokenizer, options.out / "draft")
    both = time.monotonic() - began
    print(f"{len(stream)} tokens; target {seconds:.0f} s, draft {both - seconds:.0f} s")


if __name__ == "__main__":
    run(Options, main)
