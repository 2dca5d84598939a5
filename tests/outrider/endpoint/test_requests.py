"""Fields of requests as clients of other servers send them, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from outrider.endpoint.interfaces.messages import MessagesRequest
from outrider.endpoint.interfaces.requests import SEEDS, ChatRequest
from outrider.endpoint.interfaces.responses import ResponseRequest
from outrider.text.tool_calls import THOUGHTS

USER = {"role": "user", "content": "a"}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [USER]} | fields)


VALUES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"max_tokens": -1}, {"max_tokens": None}),
    ({"max_tokens": 7, "max_completion_tokens": 5}, {"max_tokens": 5}),
    ({"max_completion_tokens": 5}, {"max_tokens": 5}),
    ({"max_tokens": 7, "max_completion_tokens": -1}, {"max_tokens": None}),
    ({"seed": -1}, {"seed": None}),
    ({"seed": 2**64 - 1}, {"seed": (2**64 - 1) % SEEDS}),
    ({"seed": -5}, {"seed": SEEDS - 5}),
    ({"seed": SEEDS - 1}, {"seed": SEEDS - 1}),
    ({"stop": [""]}, {"stop": []}),
    ({"stop": ["", "b"]}, {"stop": ["b"]}),
    ({"ignore_eos": True, "stop_token_ids": [3]}, {"ignore_eos": True, "stop_token_ids": [3]}),
    ({"min_tokens": 9}, {"min_tokens": 9}),
]
SAMPLED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 1e-8}, {"temperature": 0.0}),
    ({"temperature": 2e-5}, {"temperature": pytest.approx(1e-3)}),
    ({"top_k": 1000}, {"top_k": 256}),
    ({"top_k": -1}, {"top_k": 0}),
    ({"top_p": 1e-50}, {"top_p": pytest.approx(1e-6)}),
    ({"repetition_penalty": 0.01}, {"repetition_penalty": pytest.approx(0.01)}),
]
"""Values beyond what is computed mean the nearest that is."""


THINKS = {"enable_thinking": True, "thinking": True}
SILENT = {"enable_thinking": False, "thinking": False}
VARIABLES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),  # vLLM
    ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
    ({"reasoning_effort": "none"}, {"reasoning_effort": "none", **SILENT}),
    ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),  # /v1/responses
    ({"reasoning": {"enabled": False}}, SILENT),  # OpenRouter
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, THINKS),  # Anthropic
    ({"thinking": {"type": "adaptive"}}, THINKS),
    ({"thinking": {"type": "disabled"}}, SILENT),
    (
        {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": True}},
        {"enable_thinking": False, "thinking": True},
    ),
    ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
    ({"reasoning": {"effort": None}, "chat_template_kwargs": None}, {}),
]


READ = [
    *VALUES,
    *SAMPLED,
    *((sent, {"chat_template_kwargs": variables}) for sent, variables in VARIABLES),
]


@pytest.mark.parametrize(("sent", "expected"), READ)
def test_values_mean_what_other_servers_take_them_for(
    sent: dict[str, Any], expected: dict[str, Any]
) -> None:
    parameters = chat(**sent).parameters()
    read: Any = parameters.sampling(0) if (sent, expected) in SAMPLED else parameters
    assert {field: getattr(read, field) for field in expected} == expected


SAID = {"role": "assistant", "content": "b", "reasoning_content": "because"}
TEXT = {"type": "text", "text": "b"}
PLAIN = {"role": "assistant", "content": "b"}
REFUSAL = {"role": "assistant", "content": "no"}
CALL = {"name": "f", "arguments": "{}"}
PAST: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"content": "b", name: "because"}, SAID) for name in THOUGHTS),
    ({"content": [{"type": "thinking", "thinking": "because"}, TEXT]}, SAID),
    ({"content": [{"type": "thinking", "thinking": [{"text": "because"}]}, TEXT]}, SAID),
    ({"content": [{"type": "redacted_thinking", "data": "x"}, TEXT], "reasoning": {"a": 1}}, PLAIN),
    ({"refusal": "no", "content": None}, REFUSAL),
    ({"content": [{"type": "refusal", "refusal": "no"}]}, REFUSAL),
    (
        {"content": "b", "format": "x", "options": {"a": 1}, "prompt": "p", "annotations": [1]},
        PLAIN,
    ),
    (
        {"content": None, "function_call": CALL},
        {"role": "assistant", "content": "", "tool_calls": [{"function": CALL}]},
    ),
]


@pytest.mark.parametrize(("fields", "expected"), PAST)
def test_a_past_message_of_another_server_is_taken(
    fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    messages: Any = chat(messages=[USER, {"role": "assistant", **fields}]).prompts[0]
    assert messages[1] == expected


def test_thoughts_of_other_interfaces_belong_to_the_answer_behind_them() -> None:
    items = [
        USER,
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "be"}], "content": None},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "because"}]},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "encrypted_content": "x", "summary": []},
        USER,
    ]
    messages: Any = ResponseRequest.model_validate({"input": items}).chat().prompts[0]
    _, called, _, said, last = messages
    assert called["reasoning_content"] == "be"
    assert len(called["tool_calls"]) == 1
    assert (said, last) == (SAID, USER)
    blocks = [{"type": "thinking", "thinking": "because", "signature": "s"}, TEXT]
    turns = [USER, {"role": "assistant", "content": blocks}, USER]
    for messages, begins in ((turns, False), (turns[:-1], True)):
        sent = {"messages": messages, "thinking": {"type": "disabled"}}
        asked = MessagesRequest.model_validate(sent).chat()
        assert asked.prompts[0][1] == SAID
        assert asked.parameters().chat_template_kwargs == SILENT
        assert asked.parameters().continue_final_message is begins


def test_what_nests_too_deeply_is_refused_before_anything_reads_it() -> None:
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    for fields in (
        {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]},
        {"chat_template_kwargs": deep},
    ):
        with pytest.raises(ValidationError, match="deeper than 100"):
            chat(**fields)
