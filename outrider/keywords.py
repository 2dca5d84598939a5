"""Keyword arguments of the Python interface, for editors and type checkers. Made by
`python -m tests.support.keywords > outrider/keywords.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict


class TextKeywords(TypedDict, total=False):
    """Parameters of a text: see outrider.Parameters."""

    max_tokens: int | None
    temperature: float | None
    top_k: int
    top_p: float
    seed: int | None
    stop: Sequence[str] | None
    prompt_cache_key: str
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    schema: Mapping[str, Any] | str | bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    logprobs: int | None
    prompt_logprobs: bool
    min_tokens: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    chat_template_kwargs: Mapping[str, Any]
    continue_final_message: bool
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool


class ConnectKeywords(TypedDict, total=False):
    """Options of outrider.connect(): flags of `outrider serve` (docs/flags.md)."""

    usd_per_hour: float | None
    instance: str | None
    region: str
    spot: bool
    no_live: bool
    target_share: float
    usd_per_kwh: float | None
    usd_per_gb_up: float | None
    usd_per_gb_down: float | None
    draft_watts: float | None
    target_watts: float | None
    objective: (
        Literal[
            "total_cost", "api_cost", "energy_total", "draft_energy", "target_energy", "latency"
        ]
        | None
    )
    cs: str
    min_tps: float | None
    max_usd_per_1m: float | None
    max_joules_per_token: float | None
    max_usd: float | None
    port: int
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    token_file: str | None
    insecure: bool
    patience: float
    model_name: str | None
    tls: bool
    model: str | None
    draft_quantization: Literal["int8", "int4"] | None
    device: str
    dtype: Literal["float32", "bfloat16", "float16", "auto"] | None
    threads: int | None
    sequence_length: int | None
    measure_first: bool
    backend: Literal["outrider", "transformers"] | None
    gamma: int | None
    tree_nodes: int | None
    tree_depth: int | None
    preset: str | None
    batch: int


class ServeKeywords(TypedDict, total=False):
    """Options of outrider.serve(): flags of `outrider target` (docs/flags.md)."""

    lease: float
    grace: float
    share_prefixes: bool
    emulate: str | None
    rtt: float | None
    target_model: str | None
    device: str
    dtype: Literal["float32", "bfloat16", "float16", "auto"] | None
    threads: int | None
    sequence_length: int | None
    batch: int
    artifact: str | None
    max_tree_nodes: int
    tensor_parallel: int
    layer_offload: Literal["host", "disk"] | None
    measure_first: bool
    host: str
    port: int
    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None
    token_file: str | None
    insecure: bool
    keys_file: str | None
    usd_per_hour: float | None
    models: str | None
    backend: Literal["outrider", "transformers"] | None
