"""Fields of requests as clients of other servers send them, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from inference.errors import InvalidRequest
from outrider.endpoint.interfaces.messages import MessagesRequest
from outrider.endpoint.interfaces.requests import SEEDS, ChatRequest
from outrider.endpoint.interfaces.responses import ResponseRequest

USER = {"role": "user", "content": "a"}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [USER]} | fields)


VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unbounded": ({"max_tokens": -1}, {"max_tokens": None}),
    "the newer name of a length": (
        {"max_tokens": 7, "max_completion_tokens": 5},
        {"max_tokens": 5},
    ),
    "the newer name alone": ({"max_completion_tokens": 5}, {"max_tokens": 5}),
    "unbounded by the newer name": (
        {"max_tokens": 7, "max_completion_tokens": -1},
        {"max_tokens": None},
    ),
    "a random seed": ({"seed": -1}, {"seed": None}),
    "a seed of 64 bits": ({"seed": 2**64 - 1}, {"seed": (2**64 - 1) % SEEDS}),
    "a negative seed": ({"seed": -5}, {"seed": SEEDS - 5}),
    "a seed that is kept": ({"seed": SEEDS - 1}, {"seed": SEEDS - 1}),
    "no stop string": ({"stop": [""]}, {"stop": []}),
    "an empty stop string": ({"stop": ["", "b"]}, {"stop": ["b"]}),
    "a length": (
        {"ignore_eos": True, "min_tokens": 9, "stop_token_ids": [3]},
        {"ignore_eos": True, "min_tokens": 9, "stop_token_ids": [3]},
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_mean_what_other_servers_take_them_for(name: str) -> None:
    sent, expected = VALUES[name]
    parameters = chat(**sent).parameters()
    assert {field: getattr(parameters, field) for field in expected} == expected


SAMPLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hardly any temperature": ({"temperature": 1e-8}, {"temperature": 0.0}),
    "the least temperature": ({"temperature": 2e-5}, {"temperature": pytest.approx(1e-3)}),
    "more than are ranked": ({"top_k": 1000}, {"top_k": 256}),
    "no top-k": ({"top_k": -1}, {"top_k": 0}),
    "hardly any top-p": ({"top_p": 1e-50}, {"top_p": pytest.approx(1e-6)}),
    "the least penalty": (
        {"repetition_penalty": 0.01},
        {"repetition_penalty": pytest.approx(0.01)},
    ),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_beyond_what_is_computed_means_the_nearest_that_is(name: str) -> None:
    sent, expected = SAMPLED[name]
    params = chat(**sent).parameters().sampling(0)
    assert {field: getattr(params, field) for field in expected} == expected


THINKS = {"enable_thinking": True, "thinking": True}
SILENT = {"enable_thinking": False, "thinking": False}
VARIABLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "of vLLM": ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    "effort": ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
    "no effort": ({"reasoning_effort": "none"}, {"reasoning_effort": "none", **SILENT}),
    "of /v1/responses": ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
    "of OpenRouter": ({"reasoning": {"enabled": False}}, SILENT),
    "of Anthropic": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, THINKS),
    "adaptive": ({"thinking": {"type": "adaptive"}}, THINKS),
    "switched off": ({"thinking": {"type": "disabled"}}, SILENT),
    "the template's own come last": (
        {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": True}},
        {"enable_thinking": False, "thinking": True},
    ),
    "no answer is begun": ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
    "nothing": ({"reasoning": {"effort": None}, "chat_template_kwargs": None}, {}),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_what_is_said_of_thinking_goes_to_the_template(name: str) -> None:
    sent, expected = VARIABLES[name]
    assert chat(**sent).parameters().chat_template_kwargs == expected


def assistant(**fields: Any) -> dict[str, Any]:
    messages: Any = chat(messages=[USER, {"role": "assistant", **fields}]).prompts[0]
    return dict(messages[1])


SAID = {"role": "assistant", "content": "b", "reasoning_content": "because"}
TEXT = {"type": "text", "text": "b"}
PAST: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reasoning_content": ({"content": "b", "reasoning_content": "because"}, SAID),
    "reasoning": ({"content": "b", "reasoning": "because"}, SAID),
    "thinking": ({"content": "b", "thinking": "because"}, SAID),
    "a part": ({"content": [{"type": "thinking", "thinking": "because"}, TEXT]}, SAID),
    "a part of parts": (
        {"content": [{"type": "thinking", "thinking": [{"text": "because"}]}, TEXT]},
        SAID,
    ),
    "thoughts that are encrypted": (
        {"content": [{"type": "redacted_thinking", "data": "x"}, TEXT], "reasoning": {"a": 1}},
        {"role": "assistant", "content": "b"},
    ),
    "a refusal": ({"refusal": "no", "content": None}, {"role": "assistant", "content": "no"}),
    "a part that refuses": (
        {"content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "no"},
    ),
    "what servers add": (
        {"content": "b", "format": "x", "options": {"a": 1}, "prompt": "p", "annotations": [1]},
        {"role": "assistant", "content": "b"},
    ),
    "an older call": (
        {"content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
    ),
}


@pytest.mark.parametrize("name", PAST)
def test_a_past_message_of_another_server_is_taken(name: str) -> None:
    fields, expected = PAST[name]
    assert assistant(**fields) == expected


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
    asked = MessagesRequest.model_validate({"messages": turns, "thinking": {"type": "disabled"}})
    assert asked.chat().prompts[0][1] == SAID
    assert asked.chat().parameters().chat_template_kwargs == SILENT


def test_an_answer_that_an_anthropic_client_begins_is_continued() -> None:
    turns = [USER, {"role": "assistant", "content": "be"}]
    for messages, continues in ((turns, True), (turns[:1], False)):
        asked = MessagesRequest.model_validate({"messages": messages}).chat()
        assert asked.parameters().continue_final_message == continues


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


def test_variables_are_the_templates_own() -> None:
    for name in ("messages", "tools", "chat_template", "continue_final_message"):
        with pytest.raises(InvalidRequest, match=name):
            chat(chat_template_kwargs={name: 1}).parameters()
