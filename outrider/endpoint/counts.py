"""Finish reasons and token counts in the format of OpenAI's interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outrider.text.completion import Completion


def finish_reason(text: Completion) -> str:
    """Return why an output ended, in OpenAI's terms."""
    if text.finish_reason == "stop":
        return "tool_calls" if text.tool_calls else "stop"
    return "length"  # or the spending limit


def usage(texts: Sequence[Completion], of_each: int = 1) -> dict[str, Any]:
    """Count the tokens of prompts (each once) and outputs. of_each: number of outputs per prompt.

    Cached tokens are those of the prompt that the target had computed before.
    """
    firsts = texts[::of_each]
    prompt = sum(text.prompt_tokens for text in firsts)
    generated = sum(len(text.token_ids) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(
                min(text.traffic.reused_tokens, text.prompt_tokens) for text in firsts
            )
        },
    }


def speculation(done: Sequence[Completion]) -> dict[str, Any]:
    """Return counts of speculative decoding under vLLM's names, so that aiperf prints its table.

    acceptance_histogram: [n] number of forward passes in which n candidates were accepted
    """
    forwards = sum(text.traffic.forwards for text in done)
    drafted = sum(text.num_draft_tokens for text in done)
    accepted = sum(text.num_accepted_tokens for text in done)
    at_depth = [text.accepted.accepted_at_depth for text in done]
    deepest = max(map(len, at_depth), default=0)
    at_least = [forwards] + [
        sum(depths[depth] for depths in at_depth if depth < len(depths)) for depth in range(deepest)
    ]
    histogram = [n - deeper for n, deeper in zip(at_least, [*at_least[1:], 0], strict=True)]
    return {
        "mean_acceptance_length": 1 + accepted / forwards if forwards else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": forwards,
        "num_spec_tokens": deepest,
    }
