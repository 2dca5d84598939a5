"""Tools, forms and log-probabilities at the OpenAI interface, asked by OpenAI's own client."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import openai
import pytest

from grpc_comm.server.server import BackgroundServer
from outrider.endpoint.text_runner import TextRunner
from outrider.options.roles import TargetRole
from outrider.target.target import load_target
from tests.outrider.endpoint.conftest import opened, own, stream_data
from tests.support.tool_families import ADD, STOP, TEMPLATES, with_template
from tests.support.wire_fixtures import WAIT

PROMPT = "def main():"
CHAT: Any = [{"role": "user", "content": "add 1 and 2"}]
SCHEMA = ADD["function"]["parameters"]
CALL: dict[str, Any] = {
    "model": "",
    "messages": CHAT,
    "tools": [ADD],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 200,
}


FAMILIES = [
    "",  # whose template knows no tools
    "tagged",
    *(pytest.param(name, marks=pytest.mark.extended) for name in [*TEMPLATES][1:]),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_demanded_call_keeps_to_its_functions_schema_and_its_result_is_answered(
    family: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"model": str(with_template(tmp_path / "model", family))}
    with (
        BackgroundServer(load_target(TargetRole(port=0, batch=2, **options))) as target,
        opened(str(target.address), **options) as (*_, address),
    ):
        call_and_answer(openai.OpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0))


def call_and_answer(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    named = {"type": "function", "function": {"name": "add"}}
    asked: dict[str, Any] = CALL | {"tools": [STOP, ADD], "tool_choice": named, "seed": 3}
    (choice,) = create(**asked).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "add"
    jsonschema_rs.validate(SCHEMA, json.loads(call.function.arguments))
    chunks = [chunk.choices[0] for chunk in create(**asked, stream=True)]
    parts = [chunk.delta.tool_calls[0] for chunk in chunks if chunk.delta.tool_calls]
    (head, *rest) = (part.function for part in parts if part.function)
    assert (bool(parts[0].id), head.name, head.arguments) == (True, "add", "")
    assert {part.name for part in rest} == {None}
    assert "".join(part.arguments or "" for part in rest) == call.function.arguments
    assert not any(chunk.delta.content for chunk in chunks)
    assert chunks[-1].finish_reason == "tool_calls"
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    messages: Any = [*CHAT, choice.message.model_dump(exclude_none=True), result]
    greedy: dict[str, Any] = {"model": "", "max_tokens": 8, "temperature": 0}
    tools: Any = [ADD]
    answered = create(messages=messages, tools=tools, tool_choice="none", **greedy)
    assert answered.choices[0].finish_reason == "length"
    first = create(messages=CHAT, **greedy)
    assert answered.usage
    assert first.usage
    assert answered.usage.prompt_tokens > first.usage.prompt_tokens


def test_an_answer_of_a_form_may_stand_in_place_of_a_call(api: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"enum": [3]}}}
    (choice,) = api.chat.completions.create(
        **CALL | {"tool_choice": "auto", "response_format": form}
    ).choices
    assert choice.message.content == "3" or choice.message.tool_calls


def near(values: Any) -> Any:
    """Log-probabilities of a token up to what the shape of a forward changes."""
    return pytest.approx(values, abs=1e-4)


SAME: list[dict[str, Any]] = [
    {},
    {"presence_penalty": 0.5, "frequency_penalty": 1.2},
    {"repetition_penalty": 1.3, "min_p": 0.05},
    {"min_tokens": 8, "stop_token_ids": [*range(100, 300)]},
    {"stop": ["rn th", "et(", "process"]},  # one is in the text of each temperature
]
"""Fields that are parameters."""

FORMS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *((fields, fields) for fields in SAME),
    ({"response_format": {"type": "json_object"}}, {"schema": {"type": "object"}}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"schema": SCHEMA},
    ),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"schema": SCHEMA}),
    ({"structured_outputs": {"json": SCHEMA}}, {"schema": SCHEMA}),
    ({"structured_outputs": {"regex": "[a-f]{4}-[0-9]+"}}, {"regex": "[a-f]{4}-[0-9]+"}),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choice": ["yes", "no"]}),
    ({"top_p": 0}, {"top_k": 1}),
    ({"logit_bias": {"40": 5, "41": -100}}, {"logit_bias": {40: 5.0, 41: -100.0}}),
]
"""Fields of a request, and the parameters that they are."""


@pytest.mark.covering(1)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("asked", "parameters"), FORMS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_text_is_the_targets_own(
    api: openai.OpenAI,
    texts: TextRunner,
    asked: dict[str, Any],
    parameters: dict[str, Any],
    temperature: float,
    streamed: bool,
) -> None:
    alike: dict[str, Any] = {"max_tokens": 16, "temperature": temperature, "seed": 5}
    alone = own(texts, PROMPT, **alike, **parameters)
    assert alone.finish_reason == "stop" or "stop" not in asked
    answer: Any = api.completions.create(
        model="", prompt=PROMPT, stream=streamed, extra_body=asked, **alike
    )
    chunks = list(answer) if streamed else [answer]
    assert "".join(chunk.choices[0].text for chunk in chunks) == alone.text
    assert chunks[-1].choices[0].finish_reason == alone.finish_reason


def test_log_probabilities_of_a_chat_are_told_of_every_token(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"messages": CHAT, "max_tokens": 12, "temperature": 0}
    asked |= {"model": "", "logprobs": True, "top_logprobs": 3}
    (choice,) = api.chat.completions.create(**asked).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    content = choice.logprobs.content
    assert len(content) == 12
    told = b"".join(bytes(token.bytes or ()) for token in content)
    assert told.decode(errors="replace") == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob == token.top_logprobs[0].logprob  # the likeliest is chosen
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1
    chunks = api.chat.completions.create(**asked, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    streamed = [token for part in parts if part for token in part.content or ()]
    assert [token.token for token in streamed] == [token.token for token in content]
    assert [token.logprob for token in streamed] == near([token.logprob for token in content])


@pytest.mark.parametrize("most", [0, 4])
def test_a_prompts_log_probabilities_come_with_its_echo(
    api: openai.OpenAI, texts: TextRunner, most: int
) -> None:
    ids = texts.client.tokenizer.encode(PROMPT)
    asked: dict[str, Any] = {"prompt": ids, "echo": True, "logprobs": 2, "temperature": 0}
    (choice,) = api.completions.create(model="", **asked, max_tokens=most).choices
    assert choice.logprobs is not None
    assert choice.text.startswith(PROMPT)
    tokens, told = choice.logprobs.tokens, choice.logprobs.token_logprobs
    assert tokens is not None
    assert told is not None
    assert len(tokens) == len(told) == len(ids) + most
    assert told[0] is None
    assert choice.logprobs.top_logprobs is not None
    for token, value, likeliest in zip(tokens, told, choice.logprobs.top_logprobs, strict=True):
        assert likeliest is None or likeliest[token] == value
    offsets = choice.logprobs.text_offset
    assert offsets is not None
    assert offsets[:2] == [0, 0]  # the first token is a beginning, which stands in no text
    for token, offset in zip(tokens[1:], offsets[1:], strict=True):
        assert choice.text[offset:].startswith(token)
    alone = api.completions.create(model="", prompt=ids, max_tokens=4, temperature=0, logprobs=2)
    assert alone.choices[0].logprobs is not None
    assert alone.choices[0].logprobs.token_logprobs is not None
    assert told[len(ids) :] == near(alone.choices[0].logprobs.token_logprobs[:most])


def test_a_stream_of_a_completion_tells_what_the_whole_one_does(http: httpx.Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 12, "temperature": 1, "seed": 1}
    path = "/v1/completions"
    rows: list[tuple[int, set[int]]] = [(2, {2, 3}), (0, {1}), (False, set())]
    for logprobs, sizes in rows:
        fields = asked | {"logprobs": logprobs}
        whole = http.post(path, json=fields, timeout=WAIT).json()["choices"][0]["logprobs"] or {}
        chunks = stream_data(http.post(path, json=fields | {"stream": True}))
        parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        for name, values in whole.items():
            streamed = [value for part in parts if part for value in part[name]]
            numbers = name == "token_logprobs"
            assert name == "top_logprobs" or streamed == (near(values) if numbers else values)
        assert bool(whole) is bool(sizes)
        assert {len(values) for values in whole.get("top_logprobs", ())} <= sizes


def test_parts_of_characters_are_told_by_their_bytes(http: httpx.Client) -> None:
    form = {"structured_outputs": {"regex": "[à-ÿ€😀]{6}"}}
    asked = {"prompt": PROMPT, "max_tokens": 24, "seed": 2, "logprobs": 5, **form}
    (choice,) = http.post("/v1/completions", json=asked, timeout=WAIT).json()["choices"]
    told = choice["logprobs"]
    assert any(token.startswith("bytes:") for token in told["tokens"])
    raw = [
        bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
        if token.startswith("bytes:")
        else token.encode()
        for token in told["tokens"]
    ]
    assert b"".join(raw).decode(errors="ignore").startswith(choice["text"])
    for place, offset in enumerate(told["text_offset"]):
        assert offset == len(b"".join(raw[:place]).decode(errors="ignore"))
    assert all(len(likeliest) >= 5 for likeliest in told["top_logprobs"])


def test_the_record_of_a_call_can_be_printed(texts: TextRunner) -> None:
    done = own(texts, CHAT, tools=[ADD], tool_choice="add", max_tokens=200, logprobs=0)
    record = json.loads(json.dumps(done.record()))
    assert len(record["logprobs"]) == len(record["token_ids"])
    assert record["tool_calls"][0][1] == "add"
    assert "stopped_by" not in record
