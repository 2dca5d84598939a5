"""Answers as the published schema (/openapi.json) describes them, and counts of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel

from outrider.text.completion import Completion

Counted = dict[str, int | float | list[int]]
"""Counts of speculative decoding: see speculation()."""


class Failure(BaseModel):
    """An error, and which field is wrong where it is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class Refusal(BaseModel):
    """The answer to a request that is refused, or that failed."""

    error: Failure


class MessagesRefusal(BaseModel):
    """A refusal as Anthropic's interface says it."""

    type: Literal["error"]
    error: dict[str, str]


class PromptDetails(BaseModel):
    """Tokens of the prompts that the target had computed before."""

    cached_tokens: int


class TokenUsage(BaseModel):
    """Tokens of the prompts, each counted once, and of all texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TextCounts(BaseModel):
    speculative_decoding: Counted


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None


class CallOfFunction(BaseModel):
    """A call of a function: its name, and its arguments as JSON."""

    id: str
    type: Literal["function"]
    function: dict[str, str]


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[CallOfFunction] | None = None


class ChatChoice(_Choice):
    message: AssistantMessage


class TextChoice(_Choice):
    text: str


class _Whole(BaseModel):
    id: str
    created: int
    model: str
    usage: TokenUsage
    metrics: TextCounts


class ChatAnswer(_Whole):
    """The next message of a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextAnswer(_Whole):
    """Texts that go on after prompts."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class MessageAnswer(BaseModel):
    """The next message of a conversation."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: dict[str, int]


class TokenCount(BaseModel):
    """Tokens of a conversation as the model's template writes it."""

    input_tokens: int


class ResponseAnswer(BaseModel):
    """The items that answer a conversation."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class ModelCard(BaseModel):
    """A model that is served. max_model_len: tokens of prompt and output together."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelCards(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


class Health(BaseModel):
    """Whether the target answers, and why not."""

    status: Literal["ok", "target unavailable"]
    reason: str | None = None


class Release(BaseModel):
    """The version of this server."""

    version: str


class TargetState(BaseModel):
    """The target in use, or the reason why there is none."""

    running: bool
    address: str
    reason: str | None = None
    model: str | None = None
    draft: str | None = None
    device: str | None = None
    length: int | None = None
    priced: str | None = None
    weight: float | None = None
    unsteered: str | None = None
    trouble: str | None = None
    texts: int | None = None
    temperature: float | None = None
    suggestions: list[str] | None = None


REFUSED: dict[int | str, str] = {
    400: "a value is wrong, or not served",
    401: "a key is needed",
    403: "a page of another origin asks, or an administrator's key is needed",
    404: "no such model",
    413: "the body is too large",
    429: "too many texts at once: come again after Retry-After seconds",
    "4XX": "another wrong request",
    500: "an error of this program",
    503: "the target is away: come again after Retry-After seconds",
}
"""Status codes of refusals with their meaning."""


def responses(
    whole: type[BaseModel] | None = None, *kinds: str, refusal: type[BaseModel] = Refusal
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the answer that is wanted, and the refusals.

    kinds: content types of other forms of the answer
    """
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": refusal, "description": meaning} for status, meaning in REFUSED.items()
    }
    found[200] = {"description": "the answer", "content": {kind: {} for kind in kinds}}
    if whole is not None:
        found[200]["model"] = whole
    return found


def finish_reason(text: Completion) -> str:
    """The interface's word for why a text ended."""
    if text.finish_reason == "stop":
        return "tool_calls" if text.tool_calls else "stop"
    return "length"  # or what it may cost


def usage(texts: Sequence[Completion], of_each: int = 1) -> dict[str, Any]:
    """Tokens of the prompts, each counted once, and of all texts. of_each: texts of a prompt.

    Cached are tokens that the target had computed before.
    """
    firsts = texts[::of_each]
    prompt = sum(text.prompt_tokens for text in firsts)
    made = sum(len(text.token_ids) for text in texts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {
            "cached_tokens": sum(
                min(text.traffic.reused_tokens, text.prompt_tokens) for text in firsts
            )
        },
    }


def speculation(done: Sequence[Completion]) -> dict[str, Any]:
    """Counts of speculative decoding, with vLLM's names, so that aiperf prints its table.

    acceptance_histogram: [n] forwards in which n candidates were accepted
    """
    forwards = sum(one.traffic.forwards for one in done)
    drafted = sum(one.num_draft_tokens for one in done)
    accepted = sum(one.num_accepted_tokens for one in done)
    at_depth = [one.accepted.accepted_at_depth for one in done]
    deepest = max(map(len, at_depth), default=0)
    at_least = [forwards] + [
        sum(depths[depth] for depths in at_depth if depth < len(depths)) for depth in range(deepest)
    ]
    histogram = [here - deeper for here, deeper in zip(at_least, [*at_least[1:], 0], strict=True)]
    return {
        "mean_acceptance_length": 1 + accepted / forwards if forwards else 0.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": histogram,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_steps": forwards,
        "num_spec_tokens": deepest,
    }
