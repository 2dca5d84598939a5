"""Keyword arguments of texts in the Python interface, for editors and type checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class TextKeywords(TypedDict, total=False):
    """The fields of outrider.Parameters."""

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
