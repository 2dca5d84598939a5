"""Families of causal models that tests verify with tiny random ones. `python -m
tests.support.families` prints their table for docs/models.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

VOCABULARY = 97
WINDOW = 8

_SLIDING = {"sliding_window": WINDOW}
_KINDS = _SLIDING | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
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


def table_rows() -> str:
    """The table's rows in docs/models.md."""
    named = FAMILIES.items()
    return "".join(f"| `{name}` | {one.models} | {one.has} |\n" for name, one in named)


if __name__ == "__main__":
    print(table_rows(), end="")
