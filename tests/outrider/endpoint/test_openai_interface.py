"""The OpenAI interface, asked by OpenAI's own client and by plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import openai
import pytest

from outrider.endpoint.target_manager import TargetManager
from tests.outrider.endpoint.conftest import http_server
from tests.support.wire_fixtures import eventually

PROMPT = "def main():"
CHAT = [{"role": "user", "content": PROMPT}]
OwnText = Callable[..., str]


@pytest.fixture(scope="module")
def api(server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="not needed", max_retries=0)


@pytest.fixture(scope="module")
def http(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=60) as client:
        yield client


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_is_the_targets_own_text(
    api: openai.OpenAI, own_text: OwnText, temperature: float, streamed: bool
) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 40, "temperature": temperature, "seed": 5}
    if streamed:
        chunks = api.completions.create(model="", stream=True, **asked)
        text = "".join(chunk.choices[0].text for chunk in chunks)
    else:
        text = api.completions.create(model="", **asked).choices[0].text
    assert text == own_text(PROMPT, 40, temperature, 5)


def test_a_chat_has_the_models_template_and_right_counts(
    api: openai.OpenAI, manager: TargetManager
) -> None:
    answer = api.chat.completions.create(
        model="outrider-embedded-target", messages=CHAT, temperature=0, max_completion_tokens=12
    )
    assert manager.texts is not None
    tokenizer = manager.texts.client.tokenizer
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(tokenizer.encode_chat(CHAT))
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.role == "assistant"


def test_a_streamed_chat_ends_with_reason_counts_and_speculation(api: openai.OpenAI) -> None:
    chunks = list(
        api.chat.completions.create(
            model="",
            messages=CHAT,
            temperature=0,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    last = chunks[-1]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 30
    counts = last.model_dump()["metrics"]["speculative_decoding"]
    histogram = counts["acceptance_histogram"]
    assert sum(histogram) == counts["num_spec_steps"]
    accepted = sum(place * times for place, times in enumerate(histogram))
    assert accepted == counts["num_accepted_draft_tokens"]


def test_texts_of_one_prompt_have_seeds_one_after_the_other(
    api: openai.OpenAI, own_text: OwnText, manager: TargetManager
) -> None:
    answer = api.completions.create(
        model="", prompt=PROMPT, max_tokens=20, temperature=1, seed=7, n=3
    )
    texts = [choice.text for choice in answer.choices]
    assert texts == [own_text(PROMPT, 20, 1.0, seed) for seed in (7, 8, 9)]
    assert manager.texts is not None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(manager.texts.client.tokenizer.encode(PROMPT))
    assert answer.usage.completion_tokens == 3 * 20


def test_several_prompts_are_answered_in_their_order(api: openai.OpenAI, own_text: OwnText) -> None:
    prompts = [PROMPT, "class Queue:"]
    answer = api.completions.create(model="", prompt=prompts, max_tokens=20, temperature=0)
    assert [choice.text for choice in answer.choices] == [own_text(one, 20) for one in prompts]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_and_is_left_out(
    api: openai.OpenAI, own_text: OwnText, streamed: bool
) -> None:
    whole = own_text(PROMPT, 60)
    stop = whole[12:31]
    asked = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "stop": [stop, "never there"]}
    if streamed:
        chunks = list(api.completions.create(model="", stream=True, **asked))
        text = "".join(chunk.choices[0].text for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        choice = api.completions.create(model="", **asked).choices[0]
        text, reason = choice.text, choice.finish_reason
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_32_streams_at_once_are_the_targets_own_texts(server: str, own_text: OwnText) -> None:
    client = openai.OpenAI(base_url=f"{server}/v1", api_key="x", max_retries=0, timeout=120)

    def make(seed: int) -> str:
        chunks = client.completions.create(
            model="", prompt=PROMPT, max_tokens=24, temperature=1, seed=seed, stream=True
        )
        return "".join(chunk.choices[0].text for chunk in chunks)

    with ThreadPoolExecutor(32) as pool:
        texts = list(pool.map(make, range(32)))
    assert texts == [own_text(PROMPT, 24, 1.0, seed) for seed in range(32)]


def test_a_client_that_leaves_ends_its_text(http: httpx.Client, manager: TargetManager) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0, "stream": True}
    with http.stream("POST", "/v1/completions", json=asked) as response:
        assert next(response.iter_lines()).startswith("data: ")
        assert manager.texts is not None
        assert manager.texts.running == 1
    _wait_until_idle(manager)


def test_a_client_that_leaves_before_its_answer_ends_the_text(
    server: str, manager: TargetManager
) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server}/v1/completions", json=asked, timeout=0.3)
    _wait_until_idle(manager)


def _wait_until_idle(manager: TargetManager) -> None:
    texts = manager.texts
    assert texts is not None
    eventually(lambda: not texts.running)


REFUSED = {
    "unknown model": ({"model": "gpt-9"}, 404, "model"),
    "no tokens": ({"max_tokens": 0}, 400, "max_tokens"),
    "negative temperature": ({"temperature": -1}, 400, "temperature"),
    "not a number": ({"top_p": "much"}, 400, "top_p"),
    "too many texts": ({"n": 99}, 400, "n"),
    "tools": ({"tools": [{"type": "function"}]}, 400, "tools"),
    "json": ({"response_format": {"type": "json_object"}}, 400, "response_format"),
    "penalty": ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
    "logprobs": ({"logprobs": True}, 400, "logprobs"),
    "empty stop": ({"stop": [""]}, 400, None),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_not_served_is_refused_in_the_interfaces_shape(
    http: httpx.Client, name: str, streamed: bool
) -> None:
    more, status, param = REFUSED[name]
    asked = {"messages": CHAT, "stream": streamed} | more
    answer = http.post("/v1/chat/completions", json=asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"messages": "x"}', b'{"messages": []}', b"\xff\xfe"]
)
def test_a_body_that_is_no_request_is_refused(http: httpx.Client, body: bytes) -> None:
    answer = http.post(
        "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_values_that_ask_for_nothing_are_no_refusal(http: httpx.Client) -> None:
    asked = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}],
        "max_tokens": 2,
        "tools": [],
        "logprobs": False,
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
        "user": "alice",
        "some_other_field": 1,
    }
    assert http.post("/v1/chat/completions", json=asked).status_code == 200


def test_an_assistant_may_have_said_nothing_but_a_user_may_not(http: httpx.Client) -> None:
    silent = [*CHAT, {"role": "assistant", "content": None}, *CHAT]
    asked = {"messages": silent, "max_tokens": 2, "stream_options": {"include_usage": None}}
    assert http.post("/v1/chat/completions", json=asked).status_code == 200
    asked = {"messages": [{"role": "user", "content": None}]}
    error = http.post("/v1/chat/completions", json=asked).json()["error"]
    assert "a message of the user needs content" in error["message"]


@pytest.mark.parametrize(("method", "path"), [("POST", "embeddings"), ("GET", "completions")])
def test_a_route_that_is_not_served_is_named(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, f"/v1/{path}", json={})
    assert answer.status_code == 404
    assert f"{method} /v1/{path}" in answer.json()["error"]["message"]


def test_a_prompt_that_does_not_fit_names_both_lengths(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={"prompt": "x = 1\n" * 2000})
    assert answer.status_code == 400
    assert "1024" in answer.json()["error"]["message"]


def test_models_health_metrics_and_version_answer(http: httpx.Client) -> None:
    (model,) = http.get("/v1/models").json()["data"]
    assert model["id"] == "outrider-embedded-target"
    assert http.get(f"/v1/models/{model['id']}").json() == model
    assert http.get("/v1/models/another").status_code == 404
    assert http.get("/health").status_code == 200
    assert "vllm:generation_tokens_total" in http.get("/metrics").text
    assert http.get("/version").json()["version"]


def test_a_key_is_needed_where_there_are_keys(manager: TargetManager) -> None:
    with http_server(manager, ("alice-0123456789abcdef",)) as address:
        asked = {"prompt": PROMPT, "max_tokens": 2}
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            answer = httpx.post(f"{address}/v1/completions", json=asked, headers=headers)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer alice-0123456789abcdef"}
        assert httpx.post(f"{address}/v1/completions", json=asked, headers=right).is_success
        assert httpx.get(f"{address}/health").is_success


def test_a_page_elsewhere_cannot_act(http: httpx.Client) -> None:
    headers = {"Origin": "https://evil.example"}
    answer = http.post("/page/stop", headers=headers)
    assert answer.status_code == 403
    assert http.get("/page/state").json()["running"]


def test_more_texts_than_allowed_are_asked_to_come_again(target: str) -> None:
    from outrider.options.roles import ServeRole

    small = TargetManager(ServeRole(target_host=target, target_only=True, most_texts=1))
    small.open()
    asked = {"prompt": PROMPT, "max_tokens": 900, "stream": True}
    with (
        closing(small),
        http_server(small) as address,
        httpx.stream("POST", f"{address}/v1/completions", json=asked),
    ):
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT})
        assert answer.status_code == 429
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"


def test_without_a_target_requests_are_told_why_and_the_target_is_found_when_it_comes() -> None:
    import socket

    from grpc_comm.server.server import BackgroundServer
    from inference.errors import Unavailable
    from outrider.options.roles import ServeRole, TargetRole
    from outrider.target.target import load_target

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    manager = TargetManager(ServeRole(port=port, target_only=True))
    with pytest.raises(Unavailable):
        manager.open()
    with closing(manager), http_server(manager) as address:
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT}, timeout=30)
        assert answer.status_code == 503
        assert str(port) in answer.json()["error"]["message"]
        with BackgroundServer(load_target(TargetRole(port=port, batch=1))):
            asked = {"prompt": PROMPT, "max_tokens": 2}
            assert httpx.post(f"{address}/v1/completions", json=asked, timeout=30).is_success


def test_the_page_hears_who_named_each_token(http: httpx.Client, own_text: OwnText) -> None:
    asked = {"messages": CHAT, "max_tokens": 24}
    events: list[tuple[str, dict[str, object]]] = []
    with http.stream("POST", "/page/texts", json=asked) as response:
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, json.loads(line.removeprefix("data: "))))
    kinds = {kind for kind, _ in events}
    assert {"piece", "tokens", "figures", "end"} <= kinds
    text = "".join(str(data["text"]) for kind, data in events if kind == "piece")
    assert text == own_text(PROMPT, 24)
    end = events[-1][1]
    assert (end["tokens"], end["reason"]) == (24, "length")
