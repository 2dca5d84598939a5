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

Generated by `python -m tests.support.families > docs/models.md`.

A safetensors checkpoint runs in one of two ways, selected by `--backend`:

- **Our own decoder** (`--backend outrider`): Llama, Mistral, Qwen2 and Qwen3. `outrider compile`,
  `--draft eagle`, `--draft substitute`, `--draft_quantization` and `--layer_offload` need it.
- **The transformers library** (`--backend transformers`): any causal model with attention, as
  target and draft, on CPU and CUDA, optionally with recurrent layers. It is the default for
  architectures that our decoder does not know.

GGUF files run in llama.cpp ([drafts.md](drafts.md#gguf-files)), whatever their architecture, if a
trial at load shows that trees are computed like their paths.

## Verified families

For each family a tiny random model generates texts at temperature 0, 0.7 and 1: without a draft,
with a draft that is often right, with one that is never right, and with a growing draft. Every text
equals the library's own: `generate` at temperature 0, and the sampling contract over full passes
otherwise. Prompts are longer than the windows.

| model_type | models | has |
|---|---|---|
"""

TAIL = """
Any other model_type of the library is tried at load: the logits of a small tree must equal those of
its paths, with short windows. A model that fails is rejected.

## What is read from a directory

Both backends read the same model:

- **Files:** `model.safetensors`, otherwise the shards of its index. Other safetensors files are
  listed and ignored; an adapter next to the weights (`adapter_config.json`) is rejected.
- **Precision:** `--dtype`, otherwise `dtype` in config.json, otherwise the type of most bytes.
- **Head:** with `tie_word_embeddings` a stored head that differs from the embeddings is used, as
  the library does.

## Recurrent layers

Linear attention, Mamba 2 and short convolutions have a state instead of keys. Outrider stores the
inputs of such layers by slot and recomputes the state after any token from them, so trees, prefixes
and row copies work. Each branch starts from a copy of a state above it. A row stores at most 4
states, and a pass recomputes at most 8 tokens, more only after a rollback.

- **Memory:** hidden_size numbers per token and layer, more than keys need. Qwen3.5 by default: 24
  layers of 4,096 numbers per token, beside 8 layers of 2,048 for keys and values; a state has 13
  million numbers.
- **Time:** these layers run once per branch length, so chains are cheaper than trees, and such a
  target computes one chain per session. Random Qwen3.5 of 35 M parameters, float32, one thread of
  an AMD EPYC, load 4 to 5.6, 2026-11-27, processor time: 43 ms for one node, 68 for a chain of 5,
  74 for a chain of 9, 151 for a tree of 8 with 4 branches; the library needs 31 per token.
- **Rounding:** a node's result does not depend on its neighbours in these families. If linear
  attention has as many key heads as value heads, the library's float32 sums depend on the length of
  a branch (2e-7 for OLMo Hybrid), so texts are equal up to near-ties.
- **Rejected by the trial:** Jamba and Bamba; transformers 5.23 continues them differently by
  several tokens than token by token (0.02 of logits with a spread of 0.3).

## What is rejected

- **Only recurrent layers** (Mamba, Mamba 2, RWKV, xLSTM), or recurrent layers with windows. Try a
  GGUF file.
- **Quantized checkpoints** (`quantization_config`: fp8 of DeepSeek V3, mxfp4 of gpt-oss, GPTQ, AWQ,
  bitsandbytes). Use the bfloat16 checkpoint or a GGUF file.
- **Code in a checkpoint** (`auto_map`) never runs; a known model_type uses the library's code.
- **Weights other than safetensors**, and checkpoints with missing, unknown or integer tensors.
- **Texts beyond the original length** with `longrope` and `dynamic` scaling, whose frequencies
  would change within a text.
- **Neuron:** graphs exist for Llama, Mistral, Qwen2 and Qwen3 only.

In float32 an expert computes at least four tokens, repeating some, because kernels for fewer rows
round differently. Its result therefore does not depend on the other tokens of a pass.

## Speed of the two backends

Qwen2.5-Coder-0.5B, float32, one row, 256 tokens of context, one thread of an AMD EPYC, passes in
turns, load 6, 2026-11-27. Both need the same memory.

| nodes | our decoder, ms of processor time | transformers | ratio |
|---|---|---|---|
| 1 | 340 | 340 | 1.00 |
| 4 | 391 | 367 | 0.94 |
| 16 | 562 | 540 | 0.96 |

On CUDA, passes of models without experts are recorded as graphs. **Not yet run on CUDA**; on a CPU
every dense family was run with shapes alone, and no call depended on a tensor's values. Models with
experts, and passes that cannot be recorded, run without graphs.
"""


def page() -> str:
    """The whole of docs/models.md."""
    rows = [f"| `{name}` | {one.models} | {one.has} |" for name, one in FAMILIES.items()]
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    print(page(), end="")
