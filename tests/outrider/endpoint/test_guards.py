"""What the endpoint refuses: bodies that are no request, fields that it does not serve, and work
beyond its bounds, each told in the interface's shape with the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from inference.text.tokenizer import Tokenizer
from outrider.endpoint.access import read_keys
from outrider.endpoint.interfaces.chat_messages import MAX_BODY_BYTES
from outrider.endpoint.interfaces.failures import MAX_MESSAGE
from outrider.endpoint.interfaces.requests import (
    MAX_MESSAGES,
    MAX_PROMPTS,
    NEUTRAL,
    UNSERVED,
    ChatRequest,
    CompletionRequest,
)
from outrider.endpoint.text_runner import TextRunner
from outrider.text.parameters import Parameters
from outrider.text.prompts import SLICE, PromptTooLong, make_request
from tests.support.refusals import assert_refused

JSON = {"Content-Type": "application/json"}
TEXT, CHAT, PAGE = "/v1/completions", "/v1/chat/completions", "/page/texts"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SAID = {"role": "user", "content": "def main():"}
SHORT: dict[str, dict[str, Any]] = {
    TEXT: {"prompt": "def main():", "max_tokens": 2},
    RESPONSES: {"input": "def main():", "max_output_tokens": 2},
    **{path: {"messages": [SAID], "max_tokens": 2} for path in (CHAT, PAGE, MESSAGES)},
}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
CALLED = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
LONG = "def f(x): " * (MAX_BODY_BYTES // 20)
"""Half of what a body may hold."""

UNPAIRED = b"\\ud800"


class Refused(NamedTuple):
    """A request that is refused."""

    body: dict[str, Any] | bytes  # fields beside a short text; or the whole body
    param: str | None = None
    shown: str = ""
    code: str | None = None
    status: int = 400


def part(kind: str) -> dict[str, Any]:
    """A message with content of this kind."""
    return SAID | {"content": [{"type": kind, kind: {}, "source": {}}]}


def form(**described: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema"} | described}


def unserved(*names: str) -> Iterator[Refused]:
    for name in names:
        yield Refused({name: 0.9}, name, name, "unsupported_parameter")


OBJECT = {"response_format": {"type": "json_object"}}
TOO_LONG = "context_length_exceeded"
NO_MODEL = Refused({"model": "gpt-9"}, "model", "gpt-9", "model_not_found", 404)
UNPAIRED_MESSAGE = Refused(
    b'{"messages": [{"role": "user", "content": "%s"}]}' % UNPAIRED, shown="unicode"
)
REFUSED: dict[str, list[Refused]] = {
    CHAT: [
        NO_MODEL,
        Refused({"max_tokens": 0}, "max_tokens"),
        Refused({"temperature": -1}, "temperature"),
        Refused({"top_p": "much"}, "top_p"),
        Refused({"n": 99}, "n"),
        Refused({"tools": [{"type": "function"}]}, shown="name is"),
        Refused({"tool_choice": "required"}, shown="tool_choice required names no function"),
        Refused(form(), shown="with a schema"),
        Refused({"top_logprobs": 3}, shown="logprobs: true"),
        Refused({"logit_bias": {"a": 1}}, "logit_bias.a.[key]"),
        Refused({"logit_bias": {"4294967296": 1}}, shown="token ids are 0 to"),
        Refused({"stop_token_ids": [2**32]}, shown="token ids are 0 to"),
        Refused({"min_tokens": 2} | OBJECT, shown="min_tokens cannot be combined with a grammar"),
        Refused({"repetition_penalty": 0}, "repetition_penalty"),
        Refused({"do_sample": False}, "do_sample"),
        Refused({"skip_special_tokens": False}, "skip_special_tokens"),
        Refused({"messages": [SAID, CALL]}, shown="a call is"),
        Refused({"messages": [SAID | {"tool_calls": [CALLED]}]}, "messages.0", "from the user"),
        Refused({"messages": [part("image_url")]}, "messages.0.content.0", "images are not served"),
        Refused({"messages": [part("input_file")]}, "messages.0.content.0", "files are not served"),
        Refused({"messages": [SAID | {"content": None}]}, "messages.0", "user needs"),
        Refused({"messages": [SAID | {"content": LONG}]}, "messages", "1024", TOO_LONG),
        Refused(
            {"add_generation_prompt": True, "continue_final_message": True},
            shown="exclude each other",
        ),
        *(
            Refused({"chat_template_kwargs": {name: 1}}, shown=f"own variables: got {name}")
            for name in ("messages", "tools", "chat_template", "continue_final_message")
        ),
        *unserved(*(UNSERVED.keys() - ChatRequest.model_fields)),
        *map(Refused, (b"", b"{", b"[]", b'{"messages": "x"}', b'{"messages": []}', b"\xff\xfe")),
        UNPAIRED_MESSAGE,
    ],
    TEXT: [
        Refused({"prompt": LONG}, "prompt", "1024", TOO_LONG),
        Refused({"prompt": ["x"] * 41}, shown="41"),
        Refused({"prompt": [True, False]}, "prompt.0", "valid integer"),
        Refused(form(json_schema={"schema": {"not": {}}}), shown="not"),
        Refused(form(json_schema="x"), shown="response_format"),
        Refused(OBJECT | {"structured_outputs": {"regex": "a"}}, shown="exclude each other"),
        Refused({"structured_outputs": {"regex": "("}}, shown="grammar"),
        Refused({"max_tokens": 0}, shown="echo"),
        Refused(b'{"prompt": "x", "echo": true, "stream": true, "logprobs": 1}', shown="stream"),
        *unserved(*(UNSERVED.keys() - CompletionRequest.model_fields)),
        Refused(b'{"prompt": "%s"}' % UNPAIRED, shown="unicode"),
        *(
            Refused(b'{"prompt": "abc", "%s": "%s"}' % (field, UNPAIRED))
            for field in (b"model", b"prompt_cache_key", b"stop")
        ),
    ],
    PAGE: [UNPAIRED_MESSAGE],
    "/page/start": [Refused(b'{"address": "%s"}' % UNPAIRED)],
    RESPONSES: [
        NO_MODEL,
        *unserved("previous_response_id", "background", "prompt"),
        Refused({"text": {"verbosity": "low"}}, "verbosity", "verbosity"),
        Refused({"input": [{"type": "web_search_call"}]}, "input", "web_search_call"),
        Refused({"tools": [{"type": "web_search"}]}, shown="web_search"),
        Refused({"input": [part("input_image")]}, "messages.0.content.0", "images are"),
    ],
    MESSAGES: [
        Refused({"model": "gpt-9"}, status=404),
        Refused({"mcp_servers": [{"name": "a"}]}, shown="mcp_servers"),
        Refused({"messages": [part("image")]}, shown="images are"),
        Refused({"output_format": {"type": "x"}}, shown="output_format"),
    ],
}


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_not_served_is_refused_in_the_interfaces_shape(
    http: httpx.Client, path: str
) -> None:
    """Streamed or not; a body that is given whole says so itself."""
    for row in REFUSED[path]:
        body, param, shown, code, status = row
        bodies: list[dict[str, Any]] = (
            [{"content": body, "headers": JSON}]
            if isinstance(body, bytes)
            else [{"json": SHORT[path] | {"stream": on} | body} for on in (False, True)]
        )
        kind = "not_found_error" if (path, status) == (MESSAGES, 404) else "invalid_request_error"
        for sent in bodies:
            answer = http.post(path, **sent)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (status, kind), row
            assert error["message"], row
            assert shown in error["message"], row
            assert "\n" not in error["message"], row
            if path == MESSAGES:
                assert answer.json()["type"] == "error"
                continue
            assert code in (None, error["code"]), row
            assert isinstance(body, bytes) or error["param"] == param, row


def test_what_asks_for_nothing_and_what_is_unknown_is_no_refusal(http: httpx.Client) -> None:
    parts = [SAID | {"content": [{"type": "text", "text": "def main():"}]}]
    silent = [SAID, {"role": "assistant", "content": None}, SAID]
    for more in (
        {"messages": parts, "tools": [], "logprobs": False, "response_format": {"type": "text"}},
        {"logit_bias": {}, "repetition_penalty": 1, "structured_outputs": None, "top_logprobs": 0},
        {"messages": silent, "stream_options": {"include_usage": None}},
        {"user": "alice", "some_other_field": 1, "frequency_penalty": 0},
    ):
        assert http.post(CHAT, json=SHORT[CHAT] | more).status_code == 200
    for name, values in NEUTRAL.items():
        for value in (None, *values):
            assert ChatRequest.model_validate({"messages": [SAID], name: value})


def test_a_route_that_is_not_served_and_a_missing_header_are_named(http: httpx.Client) -> None:
    for method, path in (("POST", "/v1/embeddings"), ("GET", TEXT), ("GET", "/x")):
        answer = http.request(method, path, json={})
        assert answer.status_code == 404
        message = answer.json()["error"]["message"]
        assert message == f"{method} {path} is not served: see /openapi.json"
    answer = http.post(TEXT, content=b'{"prompt": "abc"}')
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", SHORT)
def test_a_body_beyond_the_bound_is_refused(http: httpx.Client, path: str) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    chunks = iter([body[: MAX_BODY_BYTES // 2], body[MAX_BODY_BYTES // 2 :]])
    for content in (body, chunks):
        answer = http.post(path, content=content, headers=JSON)
        assert answer.status_code == 413
        assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]


def test_what_was_sent_is_not_sent_back_without_a_bound(http: httpx.Client) -> None:
    for more in ({"stop": ["y" * 4_000_000]}, {"model": "y" * 4_000_000}):
        answer = http.post(TEXT, json={"prompt": "abc"} | more)
        assert 400 <= answer.status_code < 500
        assert len(answer.content) < 2 * MAX_MESSAGE


def test_the_pages_files_let_no_other_origin_in(http: httpx.Client) -> None:
    for path in ("/", "/main.js", "/style.css"):
        answer = http.get(path)
        assert answer.is_success, path
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_only_files_of_the_page_are_served(server: str) -> None:
    for path in (b"/..%2fapp.py", b"/%2e%2e/app.py", b"/../app.py", b"//etc/passwd"):
        assert httpx.get(httpx.URL(server).copy_with(raw_path=path)).status_code == 404


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# alice\nalice-0123456789abcdef\n", encoding="utf-8")
    keys.chmod(0o600)
    assert read_keys(keys) == ("alice-0123456789abcdef",)
    keys.chmod(0o644)
    assert_refused(lambda: read_keys(keys), [str(keys)])


# --- no work before a bound is checked


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is cut into tokens."""
    sizes, whole = list[int](), Tokenizer._ids

    def counted(self: Tokenizer, text: str, **how: bool) -> list[int]:
        sizes.append(len(text))
        return whole(self, text, **how)

    monkeypatch.setattr(Tokenizer, "_ids", counted)
    return sizes


def test_work_on_a_prompt_is_bounded_by_the_sequence_length(
    texts: TextRunner, encoded: list[int]
) -> None:
    words, ids = [LONG, "x" * len(LONG)], [3] * 1_000_000
    prompts: list[Any] = [*words, ids, [SAID | {"content": LONG}], [SAID] * 2000]
    for prompt in prompts:
        encoded.clear()
        with pytest.raises(PromptTooLong, match="1024") as refused:
            make_request(texts.client.text_model, prompt, Parameters(1))
        is_text = prompt is ids or prompt in words
        assert refused.value.param == ("prompt" if is_text else "messages")
        assert sum(encoded) <= SLICE


def test_a_long_prompt_of_few_tokens_is_made(texts: TextRunner) -> None:
    longest = max(texts.client.tokenizer.ids(), key=len).replace("Ċ", "\n").replace("Ġ", " ")
    prompt = longest * (texts.client.length - 24)
    assert len(prompt) > 8 * texts.client.length
    made = make_request(texts.client.text_model, prompt, Parameters(1))
    assert texts.client.tokenizer.decode(made.ids) == prompt


def test_too_many_texts_or_messages_are_refused_before_any_is_read(
    http: httpx.Client, encoded: list[int]
) -> None:
    rows: list[tuple[str, dict[str, Any], int]] = [
        (TEXT, {"prompt": ["a"] * 200, "n": 8}, 1600),
        (TEXT, {"prompt": ["a"] * (MAX_PROMPTS + 1), "n": 8}, MAX_PROMPTS),
        (CHAT, {"messages": [SAID] * (MAX_MESSAGES + 1)}, MAX_MESSAGES),
    ]
    for path, body, shown in rows:
        answer = http.post(path, json=body)
        assert (answer.status_code, encoded) == (400, []), path
        assert str(shown) in answer.json()["error"]["message"]
