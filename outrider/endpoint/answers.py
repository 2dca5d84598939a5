"""Answers as the published schema (/openapi.json) describes them, and counts of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, create_model

from outrider.text.completion import Completion


def _shape(name: str, **fields: Any) -> Any:
    """The model of an object. Each field is a type, or the type and default of an optional one."""
    spread: dict[str, Any] = {
        field: kind if isinstance(kind, tuple) else (kind, ...) for field, kind in fields.items()
    }
    return create_model(name, **spread)


def _list_of(kind: Any) -> Any:
    return list[kind]


_FAILURE = _shape("Failure", message=str, type=str, param=str | None, code=str | None)
Refusal = _shape("Refusal", error=_FAILURE)
MessagesRefusal = _shape("MessagesRefusal", type=Literal["error"], error=dict[str, str])

_ANSWER: dict[str, Any] = {
    "id": str,
    "created": int,
    "model": str,
    "usage": _shape(
        "TokenUsage",
        prompt_tokens=int,
        completion_tokens=int,
        total_tokens=int,
        prompt_tokens_details=_shape("PromptDetails", cached_tokens=int),
    ),
    "metrics": _shape("TextCounts", speculative_decoding=dict[str, int | float | list[int]]),
}
_CHOICE: dict[str, Any] = {
    "index": int,
    "finish_reason": Literal["stop", "length", "tool_calls"],
    "logprobs": dict[str, Any] | None,
}
_CALL = _shape("FunctionCall", id=str, type=Literal["function"], function=dict[str, str])
_MESSAGE = _shape(
    "AssistantMessage",
    role=Literal["assistant"],
    content=str | None,
    refusal=None,
    tool_calls=(_list_of(_CALL) | None, None),
)
ChatAnswer = _shape(
    "ChatAnswer",
    object=Literal["chat.completion"],
    choices=_list_of(_shape("ChatChoice", message=_MESSAGE, **_CHOICE)),
    **_ANSWER,
)
TextAnswer = _shape(
    "TextAnswer",
    object=Literal["text_completion"],
    choices=_list_of(_shape("TextChoice", text=str, **_CHOICE)),
    **_ANSWER,
)
MessageAnswer = _shape(
    "MessageAnswer",
    id=str,
    type=Literal["message"],
    role=Literal["assistant"],
    model=str,
    content=list[dict[str, Any]],
    stop_reason=Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"],
    stop_sequence=str | None,
    usage=dict[str, int],
)
TokenCount = _shape("TokenCount", input_tokens=int)
ResponseAnswer = _shape(
    "ResponseAnswer",
    id=str,
    object=Literal["response"],
    created_at=int,
    status=Literal["completed", "incomplete"],
    model=str,
    output=list[dict[str, Any]],
    usage=dict[str, Any],
)
ModelCard = _shape(
    "ModelCard", id=str, object=Literal["model"], created=int, owned_by=str, max_model_len=int
)
ModelCards = _shape("ModelCards", object=Literal["list"], data=_list_of(ModelCard))
Health = _shape("Health", status=Literal["ok", "target unavailable"], reason=(str | None, None))
Release = _shape("Release", version=str)
_OPTIONAL = {
    **dict.fromkeys(("reason", "model", "draft", "device", "priced", "unsteered", "trouble"), str),
    **dict.fromkeys(("length", "texts"), int),
    **dict.fromkeys(("weight", "temperature"), float),
    "suggestions": list[str],
}
TargetState = _shape(
    "TargetState",
    running=bool,
    address=str,
    **{name: (kind | None, None) for name, kind in _OPTIONAL.items()},
)


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
