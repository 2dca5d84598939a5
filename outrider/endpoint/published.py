"""The answers as the published schema (/openapi.json) describes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

Counted = dict[str, int | float | list[int]]
"""Counts of speculative decoding: see outrider/endpoint/answers.py."""


class Failure(BaseModel):
    """What went wrong, and which field is wrong where it is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class Refusal(BaseModel):
    """The answer to a request that is refused, or that failed."""

    error: Failure


class PromptDetails(BaseModel):
    """Tokens of the prompts that the target had computed before."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of the prompts, each counted once, and of all texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TextCounts(BaseModel):
    speculative_decoding: Counted


class _Choice(BaseModel):
    index: int
    finish_reason: Literal["stop", "length"]
    logprobs: None


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Choice):
    message: AssistantMessage


class TextChoice(_Choice):
    text: str


class _Whole(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    metrics: TextCounts


class ChatAnswer(_Whole):
    """The next message of a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextAnswer(_Whole):
    """Texts that go on after prompts."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


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
"""Status codes of refusals, and what each means."""


def answers(whole: type[BaseModel] | None = None, *kinds: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: the answer that is wanted, and the refusals.

    kinds: content types of other forms of the answer
    """
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": Refusal, "description": meaning} for status, meaning in REFUSED.items()
    }
    found[200] = {"description": "the answer", "content": {kind: {} for kind in kinds}}
    if whole is not None:
        found[200]["model"] = whole
    return found
