"""/v1/responses and /v1/messages: a chat in other words, asked by OpenAI's client and by HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai

from tests.outrider.endpoint.conftest import stream_data
from tests.support.tool_families import ADD
from tests.support.wire_fixtures import WAIT

PROMPT = "def main():"
NAME = "outrider-embedded-target"
FUNCTION = ADD["function"]
RESULT = [
    {"role": "user", "content": [{"type": "input_text", "text": "1 and 2"}]},
    {"role": "assistant", "content": "I add."},
    {"type": "function_call", "call_id": "123456789", "name": "add", "arguments": '{"x": 1}'},
    {"type": "function_call_output", "call_id": "123456789", "output": "3"},
]
USE = {"type": "tool_use", "id": "123456789", "name": "add", "input": {"x": 1}}
USED = {"type": "tool_result", "tool_use_id": "123456789", "content": "3"}
TURNS = [
    {"role": "user", "content": "1 and 2"},
    {"role": "assistant", "content": [{"type": "text", "text": "I add."}, USE]},
    {"role": "user", "content": [USED, {"type": "text", "text": "go on"}]},
]


def post(http: httpx.Client, path: str, **asked: Any) -> dict[str, Any]:
    """The answer to a greedy request."""
    answer = http.post(path, json=asked | {"temperature": 0}, timeout=WAIT)
    assert answer.is_success, answer.text
    body: dict[str, Any] = answer.json()
    return body


SYSTEM, USER = {"role": "system", "content": "Be."}, {"role": "user", "content": PROMPT}


def chat(http: httpx.Client) -> dict[str, Any]:
    """The answer of the chat that the layers stand on."""
    asked = {"messages": [SYSTEM, USER], "max_tokens": 20, "logprobs": True, "top_logprobs": 2}
    return post(http, "/v1/chat/completions", **asked)


def test_a_response_is_the_chats_text_with_its_log_probabilities(
    api: openai.OpenAI, http: httpx.Client
) -> None:
    theirs = chat(http)
    words = [token["token"] for token in theirs["choices"][0]["logprobs"]["content"]]
    asked: dict[str, Any] = {
        "model": NAME,
        "instructions": "Be.",
        "input": PROMPT,
        "max_output_tokens": 20,
        "temperature": 0,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    ours: Any = api.responses.create(**asked)
    assert ours.output_text == theirs["choices"][0]["message"]["content"]
    assert (ours.status, ours.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert ours.usage.input_tokens == theirs["usage"]["prompt_tokens"]
    assert ours.usage.output_tokens == 20
    told = ours.output[0].content[0].logprobs
    assert [token.token for token in told] == words
    assert all(len(token.top_logprobs) == 2 for token in told)
    events: list[Any] = list(api.responses.create(**asked, stream=True))
    streamed = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    assert [token.token for part in streamed for token in part] == words


def test_a_response_streams_its_items(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": NAME,
        "input": RESULT,
        "tools": [{"type": "function", "strict": True, **FUNCTION}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    whole = api.responses.create(**asked)
    with api.responses.stream(**asked) as stream:
        kinds = [event.type.removeprefix("response.") for event in stream]
        streamed = stream.get_final_response()
    (call,), (made,) = whole.output, streamed.output
    assert call.type == made.type == "function_call"
    assert (made.name, made.arguments) == (call.name, call.arguments)
    assert json.loads(call.arguments)["y"] in (1, 2)
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    assert whole.store is False
    form: Any = {"type": "json_schema", "name": "sum", "schema": FUNCTION["parameters"]}
    formed = api.responses.create(model=NAME, input=PROMPT, text={"format": form}, temperature=0)
    assert json.loads(formed.output_text)["y"] in (1, 2)


def message(http: httpx.Client, **asked: Any) -> dict[str, Any]:
    return post(http, "/v1/messages", **asked)


def test_a_message_is_the_chats_text(http: httpx.Client) -> None:
    theirs = chat(http)
    told = theirs["choices"][0]["message"]["content"]
    asked: dict[str, Any] = {"system": "Be.", "messages": [USER]}
    ours = message(http, **asked, max_tokens=20)
    assert ours["content"] == [{"type": "text", "text": told}]
    assert (ours["stop_reason"], ours["stop_sequence"]) == ("max_tokens", None)
    usage = ours["usage"]
    counted = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == theirs["usage"]["prompt_tokens"]
    assert post(http, "/v1/messages/count_tokens", **asked) == {"input_tokens": counted}
    stop = told[5:9]
    ended = message(http, **asked, max_tokens=20, stop_sequences=[stop])
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", stop)


def test_a_message_streams_its_blocks(http: httpx.Client) -> None:
    tool = {"name": "add", "input_schema": FUNCTION["parameters"]}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked = {"messages": TURNS, "tools": [tool], "tool_choice": choice, "max_tokens": 200}
    (use,) = message(http, **asked)["content"]
    assert (use["type"], use["name"]) == ("tool_use", "add")
    streamed = {"temperature": 0, "stream": True}
    events = stream_data(http.post("/v1/messages", json=asked | streamed))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [event["type"] for event in events if event.get("delta") not in deltas] == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert json.loads("".join(delta["partial_json"] for delta in deltas)) == use["input"]
    assert {event["index"] for event in events if "index" in event} == {0}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
