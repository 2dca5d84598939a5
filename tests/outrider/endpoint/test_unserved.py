"""Fields that the endpoint does not serve: refused by name, or harmless."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from outrider.endpoint.requests import NEUTRAL, UNSERVED, ChatRequest

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
