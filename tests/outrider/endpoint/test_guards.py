"""What the endpoint refuses: bodies that are no request, fields that it does not serve, and work
beyond its bounds, each told in the interface's shape with the field that is wrong.
"""

from __future__ import annotations

from contextlib import suppress
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
from tests.support.wire_fixtures import WAIT

JSON = {"Content-Type": "application/json"}
TEXT, CHAT, PAGE = "/v1/completions", "/v1/chat/completions", "/page/texts"
SAID = {"role": "user", "content": "def main():"}
SHORT: dict[str, dict[str, Any]] = {
    path: {"max_tokens": 2} | ({"prompt": "def main():"} if path == TEXT else {"messages": [SAID]})
    for path in (TEXT, CHAT, PAGE)
}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
CALLED = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
LONG = "def f(x): " * (MAX_BODY_BYTES // 20)
"""Half of what a body may hold."""

UNPAIRED = b"\\ud800"
UNKNOWN, TOO_LONG = "unsupported_parameter", "context_length_exceeded"


class Refused(NamedTuple):
    """A request that is refused."""

    path: str
    body: dict[str, Any] | bytes  # fields beside a short text; or the whole body
    param: str | None = None
    shown: str = ""
    code: str | None = None
    status: int = 400


REFUSED = {
    "unknown model": Refused(CHAT, {"model": "gpt-9"}, "model", "gpt-9", "model_not_found", 404),
    "no tokens": Refused(CHAT, {"max_tokens": 0}, "max_tokens"),
    "negative temperature": Refused(CHAT, {"temperature": -1}, "temperature"),
    "not a number": Refused(CHAT, {"top_p": "much"}, "top_p"),
    "too many texts": Refused(CHAT, {"n": 99}, "n"),
    "tool of another kind": Refused(CHAT, {"tools": [{"type": "web_search"}]}, shown="web_search"),
    "tool without a name": Refused(CHAT, {"tools": [{"type": "function"}]}, shown="name is"),
    "call without a tool": Refused(CHAT, {"tool_choice": "required"}, shown="tool_choice"),
    "no such tool": Refused(
        CHAT, {"tool_choice": {"type": "function", "function": {"name": "f"}}}, shown="f names no"
    ),
    "form without a schema": Refused(
        CHAT, {"response_format": {"type": "json_schema"}}, shown="with a schema"
    ),
    "logprobs of nothing": Refused(CHAT, {"top_logprobs": 3}, shown="logprobs: true"),
    "bias of no token": Refused(CHAT, {"logit_bias": {"a": 1}}, "logit_bias.a.[key]"),
    "a biased id that is none": Refused(
        CHAT, {"logit_bias": {"4294967296": 1}}, shown="token ids are 0 to"
    ),
    "an end that is none": Refused(CHAT, {"stop_token_ids": [2**32]}, shown="token ids are 0 to"),
    "a length of a form": Refused(
        CHAT,
        {"min_tokens": 2, "response_format": {"type": "json_object"}},
        shown="min_tokens cannot be combined with a grammar",
    ),
    "no penalty": Refused(CHAT, {"repetition_penalty": 0}, "repetition_penalty"),
    "greedy by a switch": Refused(CHAT, {"do_sample": False}, "do_sample"),
    "special tokens": Refused(CHAT, {"skip_special_tokens": False}, "skip_special_tokens"),
    "tool call": Refused(CHAT, {"messages": [SAID, CALL]}, shown="a call is"),
    "tool call of a user": Refused(
        CHAT, {"messages": [SAID | {"tool_calls": [CALLED]}]}, "messages.0", "from the user"
    ),
    "image": Refused(
        CHAT,
        {"messages": [SAID | {"content": IMAGE}]},
        "messages.0.content.0",
        "images are not served",
    ),
    "silent user": Refused(
        CHAT, {"messages": [SAID | {"content": None}]}, "messages.0", "user needs"
    ),
    "long chat": Refused(
        CHAT, {"messages": [SAID | {"content": "x = 1\n" * 2000}]}, "messages", "1024", TOO_LONG
    ),
    "long text": Refused(TEXT, {"prompt": LONG}, "prompt", "1024", TOO_LONG),
    "too many at once": Refused(TEXT, {"prompt": ["x"] * 41}, shown="41"),
    **{
        f"{name} of a {path.split('/')[2]}": Refused(path, {name: 0.9}, name, name, UNKNOWN)
        for path, known in ((TEXT, CompletionRequest), (CHAT, ChatRequest))
        for name in UNSERVED
        if name not in known.model_fields
    },
    **{
        f"body {body!r}": Refused(CHAT, body)
        for body in (b"", b"{", b"[]", b'{"messages": "x"}', b'{"messages": []}', b"\xff\xfe")
    },
    "half of a pair in a prompt": Refused(TEXT, b'{"prompt": "%s"}' % UNPAIRED, shown="unicode"),
    **{
        f"half of a pair in a message of {path}": Refused(
            path, b'{"messages": [{"role": "user", "content": "%s"}]}' % UNPAIRED, shown="unicode"
        )
        for path in (CHAT, PAGE)
    },
    **{
        f"half of a pair in {field}": Refused(
            TEXT, b'{"prompt": "abc", "%s": "%s"}' % (field.encode(), UNPAIRED)
        )
        for field in ("model", "prompt_cache_key", "stop")
    },
    "half of a pair in an address": Refused("/page/start", b'{"address": "%s"}' % UNPAIRED),
}


@pytest.mark.parametrize("path", sorted({request.path for request in REFUSED.values()}))
def test_what_is_not_served_is_refused_in_the_interfaces_shape(server: str, path: str) -> None:
    """Streamed or not; a body that is given whole says so itself."""
    with httpx.Client(base_url=server, timeout=WAIT) as http:
        for name, (_, body, *said) in REFUSED.items():
            if REFUSED[name].path != path:
                continue
            if isinstance(body, bytes):
                answers = [http.post(path, content=body, headers=JSON)]
            else:
                bodies = [SHORT[path] | {"stream": streamed} | body for streamed in (False, True)]
                answers = [http.post(path, json=whole) for whole in bodies]
            for answer in answers:
                error, (param, shown, code, status) = answer.json()["error"], said
                assert (answer.status_code, error["type"]) == (status, "invalid_request_error"), (
                    name
                )
                assert error["message"], name
                assert shown in error["message"], name
                assert code in (None, error["code"]), name
                assert isinstance(body, bytes) or error["param"] == param, name


@pytest.mark.parametrize(("name", "values"), NEUTRAL.items())
def test_a_value_that_asks_for_nothing_passes(name: str, values: tuple[Any, ...]) -> None:
    for value in (None, *values):
        assert ChatRequest.model_validate({"messages": [SAID], name: value})


def test_what_asks_for_nothing_and_what_is_unknown_is_no_refusal(server: str) -> None:
    parts = [SAID | {"content": [{"type": "text", "text": "def main():"}]}]
    silent = [SAID, {"role": "assistant", "content": None}, SAID]
    for more in (
        {"messages": parts, "tools": [], "logprobs": False, "response_format": {"type": "text"}},
        {"logit_bias": {}, "repetition_penalty": 1, "structured_outputs": None, "top_logprobs": 0},
        {"messages": silent, "stream_options": {"include_usage": None}},
        {"user": "alice", "some_other_field": 1, "frequency_penalty": 0},
    ):
        assert httpx.post(f"{server}{CHAT}", json=SHORT[CHAT] | more).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/embeddings"), ("GET", "/v1/completions"), ("POST", "/api/chat"), ("GET", "/x")],
)
def test_a_route_that_is_not_served_is_named(server: str, method: str, path: str) -> None:
    answer = httpx.request(method, f"{server}{path}", json={})
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert message == f"{method} {path} is not served: see /openapi.json"


def test_a_body_without_its_header_is_told_which_one_is_missing(server: str) -> None:
    answer = httpx.post(f"{server}{TEXT}", content=b'{"prompt": "abc"}')
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", SHORT)
def test_a_body_beyond_the_bound_is_refused(server: str, path: str, chunked: bool) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    content = iter([body[: MAX_BODY_BYTES // 2], body[MAX_BODY_BYTES // 2 :]]) if chunked else body
    answer = httpx.post(f"{server}{path}", content=content, headers=JSON)
    assert answer.status_code == 413
    assert str(MAX_BODY_BYTES) in answer.json()["error"]["message"]


def test_what_was_sent_is_not_sent_back_without_a_bound(server: str) -> None:
    for more in ({"stop": ["y" * 4_000_000]}, {"model": "y" * 4_000_000}):
        answer = httpx.post(f"{server}{TEXT}", json={"prompt": "abc"} | more)
        assert 400 <= answer.status_code < 500
        assert len(answer.content) < 2 * MAX_MESSAGE


def test_a_flood_of_headers_ends_the_connection(server: str) -> None:
    flood = {f"x-{number}": "y" * 1000 for number in range(200)}
    with suppress(httpx.TransportError):  # it may be closed before all was sent
        assert httpx.get(f"{server}/v1/models", headers=flood).status_code == 400
    assert httpx.get(f"{server}/v1/models").is_success


@pytest.mark.parametrize("path", ["/", "/main.js", "/style.css"])
def test_the_pages_files_let_no_other_origin_in(server: str, path: str) -> None:
    answer = httpx.get(f"{server}{path}")
    assert answer.is_success
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/..%2fapp.py", "/%2e%2e/app.py", "/../app.py", "//etc/passwd"])
def test_only_files_of_the_page_are_served(server: str, path: str) -> None:
    answer = httpx.get(httpx.URL(server).copy_with(raw_path=path.encode()))
    assert answer.status_code == 404


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


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (LONG, "prompt"),
        ("x" * len(LONG), "prompt"),
        ([3] * 1_000_000, "prompt"),
        ([SAID | {"content": LONG}], "messages"),
        ([SAID] * 2000, "messages"),
    ],
    ids=["words", "one word", "ids", "message", "messages"],
)
def test_work_on_a_prompt_is_bounded_by_the_sequence_length(
    texts: TextRunner, encoded: list[int], prompt: Any, param: str
) -> None:
    with pytest.raises(PromptTooLong, match="1024") as refused:
        make_request(texts.client.text_model, prompt, Parameters(1))
    assert refused.value.param == param
    assert sum(encoded) <= SLICE


def test_a_long_prompt_of_few_tokens_is_made(texts: TextRunner) -> None:
    longest = max(texts.client.tokenizer.ids(), key=len).replace("Ċ", "\n").replace("Ġ", " ")
    prompt = longest * (texts.client.length - 24)
    assert len(prompt) > 8 * texts.client.length
    made = make_request(texts.client.text_model, prompt, Parameters(1))
    assert texts.client.tokenizer.decode(made.ids) == prompt


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        (TEXT, {"prompt": ["a"] * 200, "n": 8}, 1600),
        (TEXT, {"prompt": ["a"] * (MAX_PROMPTS + 1), "n": 8}, MAX_PROMPTS),
        (TEXT, {"prompt": ["a"] * 40_000, "n": 8}, MAX_PROMPTS),
        (CHAT, {"messages": [SAID] * (MAX_MESSAGES + 1)}, MAX_MESSAGES),
    ],
)
def test_too_many_texts_or_messages_are_refused_before_any_is_read(
    server: str, encoded: list[int], path: str, body: dict[str, Any], shown: int
) -> None:
    answer = httpx.post(f"{server}{path}", json=body)
    assert (answer.status_code, encoded) == (400, [])
    assert str(shown) in answer.json()["error"]["message"]
