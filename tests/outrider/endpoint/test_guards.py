"""Guards of the server: bounds of requests, headers of the page, odd bodies, and fields that the
endpoint does not serve, which are refused by name or harmless.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.errors import InvalidRequest
from outrider.endpoint.access import read_keys
from outrider.endpoint.requests import MOST_BYTES, NEUTRAL, UNSERVED, ChatRequest


def test_keys_that_others_may_read_are_refused(keys: Path) -> None:
    assert read_keys(keys) == ("alice-0123456789abcdef",)
    keys.chmod(0o644)
    with pytest.raises(InvalidRequest, match="others may read"):
        read_keys(keys)


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/page/texts"])
def test_a_body_beyond_the_bound_is_refused(server: str, path: str, chunked: bool) -> None:
    body = b" " * (MOST_BYTES + 1)
    content = iter([body[: MOST_BYTES // 2], body[MOST_BYTES // 2 :]]) if chunked else body
    answer = httpx.post(f"{server}{path}", content=content, headers=JSON)
    assert answer.status_code == 413
    assert str(MOST_BYTES) in answer.json()["error"]["message"]


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


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/page/texts"])
def test_half_of_a_surrogate_pair_is_refused(server: str, path: str) -> None:
    field = (
        '"prompt": "\\ud800"'
        if path == "/v1/completions"
        else '"messages": [{"role": "user", "content": "\\ud800"}]'
    )
    answer = httpx.post(f"{server}{path}", content=f"{{{field}}}", headers=JSON)
    assert "unicode" in answer.json()["error"]["message"]
    assert answer.status_code == 400


def test_a_wrong_part_of_a_message_is_named(server: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    asked = {"messages": [{"role": "user", "content": [image]}]}
    error = httpx.post(f"{server}/v1/chat/completions", json=asked).json()["error"]
    assert error["param"] == "messages.0.content.0.type"
    assert "'text'" in error["message"]


def test_more_texts_than_are_ever_made_at_once_are_no_reason_to_come_again(server: str) -> None:
    answer = httpx.post(f"{server}/v1/completions", json={"prompt": ["x"] * 41})
    assert answer.status_code == 400
    assert "41" in answer.json()["error"]["message"]


CHAT = [{"role": "user", "content": "def main():"}]


@pytest.mark.parametrize("name", UNSERVED)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_field_that_would_change_the_text_is_refused_by_its_name(
    server: str, path: str, name: str
) -> None:
    asked = {"messages": CHAT} if path.startswith("chat") else {"prompt": "def main():"}
    answer = httpx.post(f"{server}/v1/{path}", json=asked | {name: 0.9, "max_tokens": 2})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert error["code"] == "unsupported_parameter"
    assert error["message"].startswith(f"{name} is not served")


@pytest.mark.parametrize(("name", "values"), NEUTRAL.items())
def test_a_value_that_asks_for_nothing_passes(name: str, values: tuple[Any, ...]) -> None:
    for value in (None, *values):
        assert ChatRequest.model_validate({"messages": CHAT, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", 0), ("do_sample", False), ("skip_special_tokens", False)],
)
def test_a_false_that_asks_for_something_is_refused(server: str, name: str, value: Any) -> None:
    asked = {"messages": CHAT, "max_tokens": 2, name: value}
    error = httpx.post(f"{server}/v1/chat/completions", json=asked).json()["error"]
    assert error["param"] == name


def test_a_message_with_a_tool_call_is_refused(server: str) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    asked = {"messages": [*CHAT, call], "max_tokens": 2}
    error = httpx.post(f"{server}/v1/chat/completions", json=asked).json()["error"]
    assert (error["param"], error["code"]) == ("tool_calls", "unsupported_parameter")
