"""Measure the embedded pair on held-out text and write its model card."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

WINDOWS = 64
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 48, 128, 128
TEMPERATURE = 0.7
GAMMA = 4
COVERAGE = (1, 2, 4, 8)
BUCKETS = ((0, 128), (128, 256), (256, 512), (512, 768), (768, 1024))
SAMPLED = f"sampled_text_temperature_{TEMPERATURE}"
SAMPLE_PROMPTS = (
    "def read_lines(path):",
    "class Queue:\n    def __init__(self, maxsize=0):",
    '"""Parse command-line options."""\n\nimport',
    "    for name in names:\n        if name",
)

CARD = """# The embedded pair

A tokenizer, a small Llama target and a smaller Llama draft, so that Outrider runs, is tested and \
is measured without
a download. It is a demonstration pair: it shows the machinery at work on real (not random) \
predictions. It is not a
code assistant, and speeds and acceptance measured with it say nothing about larger models.

`benchmarks/train_pair.py` wrote this file; every measured number in it is from `metrics.json`.

## What is here

`target/` and `draft/` are Hugging Face directories (`model_type` llama, tied embeddings, rotary \
base 10000, context
1024). Weights are float16 and meant to be run in float32; all metrics below are of these files \
run so. Both share one
byte-level BPE tokenizer of {vocabulary} tokens that puts `<|begin|>` (0) in front of every text; \
`<|end|>` (1) ends one.

{target}

{draft}

## Data

The source of the Python {python} standard library as installed (`Lib/**/*.py`), without tests, \
encodings, lib2to3,
pydoc topics and other generated tables: {train_files} files train and {held_out_files} are held \
out, by a shuffle of
the sorted paths with seed {split_seed}. `training_files.json` lists each with its SHA-256. The \
text is copyright the
Python Software Foundation and its contributors and is used under the PSF License Agreement; the \
weights are derived
from it.

## How it was made

    python -m benchmarks.train_pair --out inference/data --steps {steps} --draft-steps \
{draft_steps} --seed {seed}

with Python {machine_python} and torch {machine_torch} on {machine_threads} threads of a machine \
with {machine_cpus}
CPUs ({machine_cpu}), no GPU. The target took {target_seconds} s for {steps} steps of 2048 tokens \
(the text
is {training_tokens} tokens), at window lengths 256, 512 and at last 1024. The draft took \
{draft_seconds} s in rounds
of {draft_steps} steps. In a round of n steps the target first gives its probabilities (of its 48 \
most likely tokens)
for n / 2 batches of the text, or all of it; then the draft learns them by cross-entropy, batch \
after batch.
Muon trains the matrices, AdamW the embeddings and norms. Other work shared the machine.
The script stops where the local library differs from the list, unless `--allow-different-files` \
is given;
`--write-file-list` makes a new list, and `--measure-only` repeats the measurements and this file.

## Measured

Agreement is the share of positions where the target's token is among the draft's most likely 1, \
2, 4 or 8. The first
row is teacher-forced on {windows} windows of 1024 tokens from the held-out files; the others \
follow {prompts} prompts
of {prompt_tokens} held-out tokens with {new_tokens} new ones.

{agreement}

Tokens per target pass with chains of {gamma} draft tokens: {greedy_chain} on greedy text; \
{sampled_chain} at
temperature {temperature} (an estimate from the acceptance chance of each position, {acceptance} \
on average).

Held-out loss in nats per token: target {target_loss}, draft {draft_loss}. The most likely token \
is the file's own
token at {target_top1} of positions for the target and {draft_top1} for the draft. By position, to \
check that the
context works to its end:

{positions}

## What the target writes

The arrow marks the end of the prompt; the sampled text is at temperature {temperature}.

{samples}

## Limits

- It continues text in the style of the standard library: definitions, docstrings, assignments, \
conditions. Indentation
  and single lines look right; what they say together makes no sense. Greedy text soon repeats \
itself.
- A prompt should end before white space (`def f(x):`, not `def f(x):` and a line break): a line \
break and the
  indentation after it are one token, and so are a space and the word after it.
- Other languages, prose and other styles of code work badly: every byte can be encoded, but was \
hardly seen.
- It can repeat passages of its training text word for word.
- Beyond 1024 tokens it was neither trained nor measured.
- The script is seeded and uses torch's deterministic algorithms, but the whole run was made once: \
that another run,
  machine or torch gives metrics within two points is expected and was not measured. Of this pair \
the second round of
  the draft was started by hand, from the float16 weights of the first; the script goes on from \
its float32 weights.
"""


def load(folder: Path) -> LlamaForCausalLM:
    """The saved float16 weights, run in float32."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    return model


def held_out_windows(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], context: int
) -> torch.Tensor:
    """Evenly chosen full-context windows of the held-out files, each with a begin token in
    front.
    """
    length = context - 1
    windows = []
    for text in texts:
        tokens = [*tokenizer(text, verbose=False)["input_ids"][1:], tokenizer.eos_token_id]
        cuts = range(0, len(tokens) - length + 1, length)
        windows += [[tokenizer.bos_token_id, *tokens[cut : cut + length]] for cut in cuts]
    step = max(1, len(windows) // WINDOWS)
    return torch.tensor(windows[::step][:WINDOWS])


def logits_of(model: LlamaForCausalLM, inputs: torch.Tensor) -> torch.Tensor:
    """Logits of every position, a few rows at a time."""
    return torch.cat(
        [model(input_ids=rows, use_cache=False).logits for rows in torch.split(inputs, 4)]
    )


def rank_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """How many tokens each position holds more likely than the given one."""
    return (logits > logits.gather(-1, tokens[..., None])).sum(-1)


def coverage(rank: torch.Tensor) -> dict[str, float]:
    """Share of positions where the token is among the draft's best 1, 2, 4 and 8."""
    return {f"top{best}": round((rank < best).float().mean().item(), 4) for best in COVERAGE}


def greedy_tokens_per_pass(rank: torch.Tensor) -> float:
    """Tokens per target pass of a greedy chain of GAMMA draft tokens, walked along the target's
    greedy text.
    """
    passes = 0
    for row in (rank == 0).tolist():
        position = 0
        while position < len(row):
            right = row[position : position + GAMMA]
            position += (right.index(False) if False in right else len(right)) + 1
            passes += 1
    return round(rank.numel() / passes, 3)


def sampled_tokens_per_pass(overlap: torch.Tensor) -> float:
    """Expected tokens per target pass of a sampled chain, from the acceptance chance of every
    position.
    """
    runs = overlap.unfold(1, GAMMA, 1).cumprod(-1)
    return round(1 + runs.sum(-1).mean().item(), 3)


def text_metrics(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, windows: torch.Tensor
) -> dict[str, Any]:
    """Teacher-forced metrics on held-out text: agreement, coverage of the target's choice, loss
    by position.
    """
    inputs, labels = windows[:, :-1], windows[:, 1:]
    wanted, offered = logits_of(target, inputs), logits_of(draft, inputs)
    choice = wanted.argmax(-1)
    result: dict[str, Any] = {
        "windows": len(windows),
        "draft_covers_target_choice": coverage(rank_of(offered, choice)),
    }
    for name, logits in (("target", wanted), ("draft", offered)):
        loss = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        result[name] = {
            "loss": round(loss.mean().item(), 4),
            "top1_of_text": round((rank_of(logits, labels) == 0).float().mean().item(), 4),
            "loss_by_position": {
                f"{a}-{b - 1}": round(loss[:, a:b].mean().item(), 4) for a, b in BUCKETS
            },
        }
    agree = (offered.argmax(-1) == choice).float()
    result["agreement_by_position"] = {
        f"{a}-{b - 1}": round(agree[:, a:b].mean().item(), 4) for a, b in BUCKETS
    }
    return result


def generate(target: LlamaForCausalLM, prompts: torch.Tensor, temperature: float) -> torch.Tensor:
    """The target's continuation of every prompt, greedy where the temperature is zero."""
    manner: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        manner = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    untyped: Any = target
    tokens: torch.Tensor = untyped.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        **manner,
    )
    return tokens


def generated_metrics(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    prompts: torch.Tensor,
    temperature: float,
) -> dict[str, Any]:
    """How well the draft foresees what the target itself writes."""
    tokens = generate(target, prompts, temperature)
    inputs, labels = tokens[:, :-1], tokens[:, prompts.shape[1] :]
    offered = logits_of(draft, inputs)[:, prompts.shape[1] - 1 :]
    rank = rank_of(offered, labels)
    result: dict[str, Any] = {"draft_covers_chosen_token": coverage(rank)}
    if temperature == 0:
        result[f"tokens_per_pass_gamma{GAMMA}"] = greedy_tokens_per_pass(rank)
        return result
    wanted = logits_of(target, inputs)[:, prompts.shape[1] - 1 :]
    overlap = torch.minimum(
        (wanted / temperature).softmax(-1), (offered / temperature).softmax(-1)
    ).sum(-1)
    result["acceptance_chance"] = round(overlap.mean().item(), 4)
    result[f"estimated_tokens_per_pass_gamma{GAMMA}"] = sampled_tokens_per_pass(overlap)
    return result


def samples(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase) -> list[dict[str, str]]:
    """Greedy and sampled continuations of a few prompts."""
    result = []
    for prompt in SAMPLE_PROMPTS:
        tokens = torch.tensor([tokenizer(prompt)["input_ids"]])
        texts = {
            manner: str(
                tokenizer.decode(generate(target, tokens, temperature)[0, tokens.shape[1] :])
            )
            for manner, temperature in (("greedy", 0.0), ("sampled", TEMPERATURE))
        }
        result.append({"prompt": prompt, **texts})
    return result


def sizes(folder: Path, model: LlamaForCausalLM) -> dict[str, int]:
    """Parameters (tied embeddings once) and bytes on disk of one model."""
    return {
        "parameters": sum(value.numel() for value in model.parameters()),
        "weight_bytes": (folder / "model.safetensors").stat().st_size,
        "folder_bytes": sum(path.stat().st_size for path in folder.iterdir()),
    }


def machine() -> dict[str, Any]:
    """What the numbers were made on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


@torch.no_grad()
def measure_pair(
    out: Path, texts: list[str], training: dict[str, Any], seed: int
) -> dict[str, Any]:
    """All metrics of the pair as saved: float16 weights run in float32."""
    torch.manual_seed(seed)
    target, draft = load(out / "target"), load(out / "draft")
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    windows = held_out_windows(tokenizer, texts, target.config.max_position_embeddings)
    starts = torch.arange(PROMPTS) % len(windows)
    prompts = windows[starts, :PROMPT_TOKENS]
    return {
        "vocabulary": len(tokenizer),
        "target": sizes(out / "target", target),
        "draft": sizes(out / "draft", draft),
        "held_out_text": text_metrics(target, draft, windows),
        "greedy_text": generated_metrics(target, draft, prompts, 0.0),
        SAMPLED: generated_metrics(target, draft, prompts, TEMPERATURE),
        "samples": samples(target, tokenizer),
        "training": training,
        "machine": machine(),
    }


def table(title: str, rows: dict[str, Any]) -> str:
    """A two-column Markdown table."""
    return "\n".join(
        [f"| {title} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def agreement_table(metrics: dict[str, Any]) -> str:
    """How often the target's token is among the draft's best, for the three kinds of text."""
    kinds = {
        "held-out files, the target's most likely token": metrics["held_out_text"][
            "draft_covers_target_choice"
        ],
        "the target's greedy text": metrics["greedy_text"]["draft_covers_chosen_token"],
        f"the target's text at temperature {TEMPERATURE}": metrics[SAMPLED][
            "draft_covers_chosen_token"
        ],
    }
    head = (
        "| text | "
        + " | ".join(f"top {best}" for best in COVERAGE)
        + " |\n|---|"
        + "---|" * len(COVERAGE)
    )
    rows = [
        "| " + " | ".join([name, *map(percent, shares.values())]) + " |"
        for name, shares in kinds.items()
    ]
    return "\n".join([head, *rows])


def position_table(metrics: dict[str, Any]) -> str:
    """Held-out loss and agreement by position in the context."""
    text = metrics["held_out_text"]
    losses, drafts = (text[name]["loss_by_position"] for name in ("target", "draft"))
    shares = text["agreement_by_position"]
    rows = [
        f"| {name} | {losses[name]:.3f} | {drafts[name]:.3f} | {percent(shares[name])} |"
        for name in losses
    ]
    return "\n".join(
        ["| position | target loss | draft loss | agreement |\n|---|---|---|---|", *rows]
    )


def sample_text(metrics: dict[str, Any]) -> str:
    """The target's continuations, each after its prompt."""
    blocks = []
    for sample in metrics["samples"]:
        for manner in ("greedy", "sampled"):
            blocks.append(f"{manner}:\n\n```text\n{sample['prompt']}⟶{sample[manner]}\n```")
    return "\n\n".join(blocks)


def write_card(out: Path, metrics: dict[str, Any], listing: dict[str, Any]) -> None:
    """Write the model card; every number in it is one of the metrics."""
    training, machine_facts = metrics["training"], metrics["machine"]
    splits = [entry["split"] for entry in listing["files"]]
    text = metrics["held_out_text"]
    card = CARD.format(
        vocabulary=metrics["vocabulary"],
        target=table("target", metrics["target"]),
        draft=table("draft", metrics["draft"]),
        python=listing["python"],
        train_files=splits.count("train"),
        held_out_files=splits.count("held-out"),
        split_seed=listing["seed"],
        gamma=GAMMA,
        temperature=TEMPERATURE,
        windows=text["windows"],
        target_loss=f"{text['target']['loss']:.3f}",
        draft_loss=f"{text['draft']['loss']:.3f}",
        target_top1=percent(text["target"]["top1_of_text"]),
        draft_top1=percent(text["draft"]["top1_of_text"]),
        prompts=PROMPTS,
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
        greedy_chain=metrics["greedy_text"][f"tokens_per_pass_gamma{GAMMA}"],
        sampled_chain=metrics[SAMPLED][f"estimated_tokens_per_pass_gamma{GAMMA}"],
        acceptance=percent(metrics[SAMPLED]["acceptance_chance"]),
        agreement=agreement_table(metrics),
        positions=position_table(metrics),
        samples=sample_text(metrics),
        **training | {"draft_steps": " ".join(map(str, training["draft_steps"]))},
        **{f"machine_{name}": value for name, value in machine_facts.items()},
    )
    (out / "README.md").write_text(card)
