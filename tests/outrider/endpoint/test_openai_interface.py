"""The OpenAI interface, asked by OpenAI's own client and by plain HTTP; and the layers upon it,
/v1/responses and /v1/messages: a chat in other words.
"""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any

import httpx
import openai
import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import Unavailable
from outrider.endpoint.interfaces.chat_answers import ChatWriter
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import TextRunner
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.target import load_target
from tests.outrider.endpoint.conftest import http_server, opened, own, stream_data
from tests.support.tool_families import ADD
from tests.support.wire_fixtures import WAIT, free_port

PROMPT, MODEL = "def main():", "outrider-embedded-target"
CHAT: Any = [{"role": "user", "content": PROMPT}]


def test_a_chat_ends_with_reason_counts_and_speculation_streamed_or_not(
    api: openai.OpenAI, texts: TextRunner
) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "temperature": 0, "max_completion_tokens": 30}
    answer = api.chat.completions.create(model=MODEL, **asked)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(texts.client.tokenizer.encode_chat(CHAT))
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    *chunks, last = api.chat.completions.create(
        model="", stream=True, stream_options={"include_usage": True}, **asked
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert (said, chunks[-1].choices[0].finish_reason) == (choice.message.content, "length")
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == answer.usage.completion_tokens == 30
    counts = last.model_dump()["metrics"]["speculative_decoding"]
    histogram = counts["acceptance_histogram"]
    assert sum(histogram) == counts["num_spec_steps"]
    accepted = sum(place * times for place, times in enumerate(histogram))
    assert accepted == counts["num_accepted_draft_tokens"]


def test_texts_come_in_the_order_of_prompts_and_their_seeds(
    api: openai.OpenAI, texts: TextRunner
) -> None:
    prompts = [PROMPT, "class Queue:"]
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 1}
    answer = api.completions.create(model="", prompt=prompts, n=3, seed=7, **asked)
    alone = [own(texts, prompt, seed=seed, **asked) for prompt in prompts for seed in (7, 8, 9)]
    assert [choice.text for choice in answer.choices] == [text.text for text in alone]
    assert answer.usage is not None
    counted = sum(len(texts.client.tokenizer.encode(prompt)) for prompt in prompts)
    assert answer.usage.prompt_tokens == counted
    assert answer.usage.completion_tokens == 6 * 8


def test_models_health_metrics_version_and_cached_tokens_are_told(http: httpx.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert model["id"] == MODEL
    assert model["created"] > 0
    assert http.get(f"/v1/models/{model['id']}").json() == model
    assert http.get("/v1/models/another").status_code == 404
    assert http.get("/health").status_code == 200
    metrics = http.get("/metrics").text
    for idle in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert re.search(rf"^vllm:{idle}{{.*}} 0.0$", metrics, re.MULTILINE)
    assert http.get("/version").json()["version"]
    asked = {"prompt": "def again(x):\n    return x\n" * 8, "max_tokens": 2}
    first, second = (http.post("/v1/completions", json=asked).json()["usage"] for _ in range(2))
    assert set(first["prompt_tokens_details"]) == {"cached_tokens"}
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] <= second["prompt_tokens"]
    metrics = http.get("/metrics").text
    for counter in ("generation_tokens_total{", 'request_success_total{finished_reason="length"'):
        assert re.search(rf"^vllm:{counter}.*}} [1-9]", metrics, re.MULTILINE)


def test_a_key_is_needed_where_there_are_keys(manager: TargetManager) -> None:
    key = "alice-0123456789abcdef"
    with http_server(manager, (key,)) as address, httpx.Client(base_url=address) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            answer = http.post("/v1/completions", json={"prompt": PROMPT}, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        asked = {"messages": CHAT, "max_tokens": 1}
        answer = http.post("/v1/messages", json=asked)
        assert (answer.status_code, answer.json()["type"]) == (401, "error")
        assert answer.json()["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert http.post("/v1/messages", json=asked, headers=headers).is_success
        assert http.get("/health").is_success


def test_a_page_elsewhere_cannot_act(http: httpx.Client) -> None:
    headers = {"Origin": "https://evil.example"}
    assert http.post("/page/stop", headers=headers).status_code == 403
    assert http.get("/page/state").json()["running"]


def test_more_texts_than_allowed_are_asked_to_come_again(target: str) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 900, "stream": True}
    with (
        opened(target, max_requests=1) as (*_, address),
        httpx.stream("POST", f"{address}/v1/completions", json=asked),
    ):
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_without_a_target_requests_are_told_why_and_the_target_is_found_when_it_comes() -> None:
    port = free_port()
    manager = TargetManager(ServeRole(port=port, draft="none"))
    with pytest.raises(Unavailable):
        manager.open()
    with closing(manager), http_server(manager) as address:
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT}, timeout=30)
        assert answer.status_code == 503
        assert str(port) in answer.json()["error"]["message"]
        with BackgroundServer(load_target(TargetRole(port=port, batch=1))):
            asked = {"prompt": PROMPT, "max_tokens": 2}
            assert httpx.post(f"{address}/v1/completions", json=asked, timeout=30).is_success


def test_a_fault_within_a_stream_becomes_an_event(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> None:
        raise RecursionError

    monkeypatch.setattr(ChatWriter, "finish", fail)
    asked = {"messages": CHAT, "max_tokens": 2, "stream": True}
    lines = http.post("/v1/chat/completions", json=asked).text.split()
    assert "internal error" in " ".join(lines)
    assert lines[-1] == "[DONE]"


# --- the layers

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
        "model": MODEL,
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
        "model": MODEL,
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
    formed = api.responses.create(model=MODEL, input=PROMPT, text={"format": form}, temperature=0)
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
