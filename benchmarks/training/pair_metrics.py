"""Measure the embedded pair on held-out text and write its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerBase

from benchmarks.harness import table_lines
from outrider.measure.testbed import environment

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

CARD = Path(__file__).parent / "pair_card.md"
"""The model card, with the names of metrics in braces."""


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
    """Number of tokens that each position holds more likely than the given one."""
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
    """Shares of the target's own text that the draft foresees."""
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
        "machine": {**environment(), "threads": torch.get_num_threads()},
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
    """Shares of positions whose token is among the draft's best, for the three kinds of text."""
    kinds = {
        "held-out files, the target's most likely token": metrics["held_out_text"][
            "draft_covers_target_choice"
        ],
        "the target's greedy text": metrics["greedy_text"]["draft_covers_chosen_token"],
        f"the target's text at temperature {TEMPERATURE}": metrics[SAMPLED][
            "draft_covers_chosen_token"
        ],
    }
    heads = ["text", *(f"top {best}" for best in COVERAGE)]
    rows = [[name, *map(percent, shares.values())] for name, shares in kinds.items()]
    return "\n".join(table_lines(heads, rows))


def position_table(metrics: dict[str, Any]) -> str:
    """Held-out loss and agreement by position in the context."""
    text = metrics["held_out_text"]
    losses, drafts = (text[name]["loss_by_position"] for name in ("target", "draft"))
    shares = text["agreement_by_position"]
    rows = [
        [name, f"{losses[name]:.3f}", f"{drafts[name]:.3f}", percent(shares[name])]
        for name in losses
    ]
    return "\n".join(table_lines(["position", "target loss", "draft loss", "agreement"], rows))


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
    card = CARD.read_text(encoding="utf-8").format(
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
        **training | {"draft_steps": ",".join(map(str, training["draft_steps"]))},
        **{f"machine_{name}": value for name, value in machine_facts.items()},
    )
    (out / "README.md").write_text(card)
