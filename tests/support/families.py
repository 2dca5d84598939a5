"""Families of causal models that tests verify with tiny random ones, and docs/models.md, which is
made from them: `python -m tests.support.families > docs/models.md`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

VOCABULARY = 97
WINDOW = 8

_SLIDING = {"sliding_window": WINDOW}
_KINDS = {
    **_SLIDING,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}
_ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
_DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_ssm": 64,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_OF_FULL_LAYERS = {"global_head_dim": 16, "num_global_key_value_heads": 1}
_GEMMA_4 = {
    **_SLIDING,
    **_OF_FULL_LAYERS,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "use_bidirectional_attention": "vision",
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}


class Family(NamedTuple):
    """A model_type of the library.

    models: published models of it
    has: what its attention and layers have
    fields: of a tiny config, beside TINY
    """

    models: str
    has: str
    fields: dict[str, Any]


TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES = {
    "llama": Family("Llama 2 to 3.3, TinyLlama, SmolLM2", "groups", {}),
    "mistral": Family("Mistral 7B, Nemo, Small", "groups, window", _SLIDING),
    "qwen2": Family("Qwen2, Qwen2.5, Qwen2.5-Coder", "groups, biases", {}),
    "qwen3": Family("Qwen3", "groups, norms of heads", {}),
    "qwen3_moe": Family("Qwen3-30B-A3B, Qwen3-Coder", "experts", _EXPERTS),
    "mixtral": Family("Mixtral 8x7B, 8x22B", "experts, window", {**_EXPERTS, **_SLIDING}),
    "gpt_oss": Family(
        "gpt-oss, unquantized",
        "experts, sinks, windows",
        {**_EXPERTS, **_KINDS, "intermediate_size": 64},  # ends of vectors round in their own way
    ),
    "gemma2": Family("Gemma 2", "windows, capped logits", {**_KINDS, "query_pre_attn_scalar": 8}),
    "gemma3_text": Family(
        "Gemma 3", "windows, two rotary bases", {**_KINDS, "query_pre_attn_scalar": 8}
    ),
    "gemma4_text": Family(
        "Gemma 4", "experts, windows, two sizes of heads, layers without keys", _GEMMA_4
    ),
    "phi3": Family("Phi-3, Phi-4-mini, Phi-4", "joint matrices, window", _SLIDING),
    "olmo2": Family("OLMo 2", "norms behind layers", {}),
    "deepseek_v3": Family(
        "DeepSeek V3, R1, Kimi K2, unquantized", "latent attention, experts", {**_LATENT, **_ROUTED}
    ),
    "cohere2": Family("Command R7B, Command A", "windows, parallel layers", _KINDS),
    "glm4": Family("GLM-4-0414", "half of a head rotated", {}),
    "glm4_moe": Family("GLM-4.5, GLM-4.6", "experts", _ROUTED),
    "llama4_text": Family("Llama 4, its text part", "experts, chunks", {
        "num_local_experts": 4,
        "attention_chunk_size": WINDOW,
        "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
        "no_rope_layers": [1, 0, 1],
        "intermediate_size_mlp": 48,
    }),
    "smollm3": Family("SmolLM3", "layers without positions", {}),
    "granitemoe": Family("Granite 3 MoE", "experts, scaled logits", _EXPERTS),
    "qwen3_5_text": Family("Qwen3.5, its text part", "linear attention", _DELTA),
    "qwen3_next": Family("Qwen3-Next", "experts, linear attention", {
        **_DELTA,
        **_EXPERTS,
        "shared_expert_intermediate_size": 24,
    }),
    "falcon_h1": Family("Falcon-H1", "Mamba 2 beside attention", _MAMBA),
    "granitemoehybrid": Family("Granite 4", "experts, Mamba 2", {
        **_MAMBA,
        **_EXPERTS,
        "shared_intermediate_size": 24,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    }),
    "nemotron_h": Family("Nemotron-H, Nemotron 3 Nano", "experts, Mamba 2", {
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 16,
        "n_groups": 1,
        "chunk_size": 16,
        "layer_types": ["linear_attention", "full_attention", "mlp"],
    }),
    "lfm2": Family("LFM2", "short convolutions", {
        "layer_types": ["conv", "full_attention", "conv"],
    }),
}  # fmt: skip
"""By model_type, in the order of the page."""

STATES = ("linear attention", "Mamba 2", "Mamba 2 beside attention", "short convolutions")
"""What layers have that keep a running state."""

EVERY_TIME = ("llama", "gpt_oss", "deepseek_v3", "qwen3_5_text")
"""Families whose tests run in the quick tier; the others are of the extended one."""


def config_of(family: str) -> dict[str, Any]:
    """The config.json of a tiny model, with the fields that the library knows of the family."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(family)
    names = {*known.to_dict(), *known.attribute_map, *_OF_FULL_LAYERS, "layer_types"}
    given = TINY | FAMILIES[family].fields
    return {"model_type": family} | {name: given[name] for name in given if name in names}


HEAD = """# Models

Made by `python -m tests.support.families > docs/models.md`.

A checkpoint in safetensors is computed in one of two ways. `--backend` picks one.

- **The decoder of our own** (`--backend outrider`) computes Llama, Mistral, Qwen2 and Qwen3. It is
  what `outrider compile` makes graphs of, what EAGLE heads and substitutes draft beside, and what
  `--draft_quantization` and `--layer_offload` change.
- **The transformers library** (`--backend transformers`) computes any causal model with attention,
  on cpu or cuda, as target and as draft. Layers with a running state may stand beside it. It is
  taken by itself where our decoder does not know the architecture.

A GGUF file is computed by llama.cpp ([gguf.md](gguf.md)), whatever its architecture, if a trial at
load shows that trees are computed as their paths are.

## Families that are verified

For each family, a tiny random model writes texts at temperature 0, 0.7 and 1. Every text equals the
library's own: its `generate` at temperature 0, and the choices of the sampling contract from
full passes at the others. Texts are made without a draft, with trees of a draft that is often
right, with trees of one that never is, and with a growing draft. Prompts are longer than windows.

| model_type | models | has |
|---|---|---|
"""

TAIL = """
Any other model_type of the library is tried when it is loaded: logits of a small tree have to be
those that the library computes of its paths, with short windows. A model that fails is refused.

## Running states

Linear attention, Mamba 2 and short convolutions keep a state instead of keys. Here such a layer's
input is kept by slot, as keys are. Its state can be computed again behind any token from those
inputs, without the other layers. So trees, prefixes and copies of rows work as with
keys. Each line of a tree begins from a copy of a state above it. At most 4 states of a row's text
are kept; at most 8 tokens are computed again in a call, unless a text was cut or read from a file.
Then one call computes the layers again from the last state that fits.

- **Memory**: an input takes hidden_size numbers a token and layer, which is more than the model's
  keys take. In the library's default Qwen3.5 these are 24 layers of 4,096 numbers a token, beside
  8 of 2,048 for keys and values. A state takes 13 million numbers there.
- **Time**: a call computes these layers once for each length of a line, so chains cost less than
  trees. A random Qwen3.5 of 35 M parameters in float32, one thread of an AMD EPYC, load 4 to 5.6,
  2026-11-27, took these milliseconds of the processor: 43 for one node, 68 for a chain of 5, 74 for
  a chain of 9, 151 for a tree of 8 with 4 lines. The library itself takes 31 for a token. So such
  a target computes each session's likeliest chain. Without a draft no token is computed twice.
- **Rounding**: what a node gets is the same to the last bit whatever stands beside it, in the
  families above. Where linear attention has as many key heads as value heads, the library's float32
  sums depend on the length of a line: 2e-7 was seen (OLMo Hybrid). Then a text is the target's own
  up to near-ties.
- **Found by the trial**: transformers 5.23 continues Jamba and Bamba from a state differently by
  several tokens than token by token (by 0.02 of logits with a spread of 0.3), so they are refused.

## What is refused

- **A running state alone** (Mamba, Mamba 2, RWKV, xLSTM), or beside windows. Such a model's GGUF
  file may be computed.
- **Quantized checkpoints** (`quantization_config`: fp8 of DeepSeek V3, mxfp4 of gpt-oss, GPTQ, AWQ,
  bitsandbytes): they need packages and kernels of their own. Take the checkpoint in bfloat16, or a
  GGUF file.
- **Code in a checkpoint** (`auto_map`) is never run. Where the library knows the model_type, its
  own code computes the model.
- **Weights that are not safetensors**, and checkpoints with a missing or unknown tensor.
- **Texts beyond the original length** of `longrope` and `dynamic` scalings: the frequencies would
  change in the middle of a text.
- **Neuron**: `outrider compile` makes graphs of Llama, Mistral, Qwen2 and Qwen3. For gpt-oss AWS's
  own engine, vLLM-Neuron, has an example; Outrider does not draft for it.
- `--draft eagle`, `--draft substitute`, `--draft_quantization` and `--layer_offload` are of our own
  decoder.

In float32 an expert computes four tokens at least, some of them repeatedly: kernels for fewer rows
round differently. So no expert's rounding depends on the other tokens of a call.

## What it costs

Qwen2.5-Coder-0.5B in float32, one row, 256 tokens of context, one thread of an AMD EPYC,
2026-11-27. Forwards of both took turns in one process beside other work (load 6), so the ratio is
what counts.

| nodes | our decoder, ms of the processor | the library | ratio |
|---|---|---|---|
| 1 | 340 | 340 | 1.00 |
| 4 | 391 | 367 | 0.94 |
| 16 | 562 | 540 | 0.96 |

Weights (2,521 MB) and caches take the same memory in both.

On CUDA, calls of models without experts are recorded as graphs. **Not yet run on CUDA**: on a CPU
every dense family above was run once with shapes alone, and nothing in its calls depended on what a
tensor holds. Which experts compute a token does, so models with experts run without graphs. So does
a call whose recording fails.
"""


def page() -> str:
    """The whole of docs/models.md."""
    rows = [f"| `{name}` | {one.models} | {one.has} |" for name, one in FAMILIES.items()]
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    print(page(), end="")
