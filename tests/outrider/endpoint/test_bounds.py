"""Bounds that hold before any work, and work that ends with its caller."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from inference.errors import LimitExceeded
from inference.text import Tokenizer
from outrider.endpoint.failures import MOST_SIGNS
from outrider.endpoint.requests import MOST_BYTES, MOST_MESSAGES, MOST_PROMPTS
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import READERS, TextRunner
from outrider.text.prompts import SLICE, Parameters, PromptTooLong, make_request
from tests.support.wire_fixtures import WAIT, eventually

LONG = "def f(x): " * (MOST_BYTES // 20)
"""Half of what a body may hold."""

ONE = Parameters(1)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Characters of each text that is cut into tokens."""
    sizes, whole = list[int](), Tokenizer._ids

    def counted(self: Tokenizer, text: str, **how: bool) -> list[int]:
        sizes.append(len(text))
        return whole(self, text, **how)

    monkeypatch.setattr(Tokenizer, "_ids", counted)
    return sizes


@pytest.fixture
def texts(manager: TargetManager) -> TextRunner:
    assert manager.texts is not None
    return manager.texts


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (LONG, "prompt"),
        ("x" * len(LONG), "prompt"),
        ([3] * 1_000_000, "prompt"),
        ([{"role": "user", "content": LONG}], "messages"),
        ([{"role": "user", "content": "a"}] * 2000, "messages"),
    ],
    ids=["words", "one word", "ids", "message", "messages"],
)
def test_work_on_a_prompt_is_bounded_by_the_sequence_length(
    texts: TextRunner, encoded: list[int], prompt: Any, param: str
) -> None:
    with pytest.raises(PromptTooLong, match="more than 1024 tokens") as refused:
        make_request(texts.client, prompt, ONE)
    assert refused.value.param == param
    assert sum(encoded) <= SLICE


def test_a_long_prompt_of_few_tokens_is_made(texts: TextRunner) -> None:
    longest = max(texts.client.tokenizer.ids(), key=len).replace("Ċ", "\n").replace("Ġ", " ")
    prompt = longest * (texts.client.length - 24)
    assert len(prompt) > 8 * texts.client.length
    assert texts.client.tokenizer.decode(make_request(texts.client, prompt, ONE).ids) == prompt


@pytest.mark.parametrize("count", [200, MOST_PROMPTS + 1, 40_000])
def test_too_many_texts_are_refused_before_any_prompt_is_read(
    server: str, encoded: list[int], count: int
) -> None:
    answer = httpx.post(f"{server}/v1/completions", json={"prompt": ["a"] * count, "n": 8})
    assert answer.status_code == 400
    assert (
        str(8 * count if count < MOST_PROMPTS else MOST_PROMPTS)
        in (answer.json()["error"]["message"])
    )
    assert encoded == []


def test_too_many_messages_are_refused_before_any_is_read(server: str, encoded: list[int]) -> None:
    chat = [{"role": "user", "content": "a"}] * (MOST_MESSAGES + 1)
    answer = httpx.post(f"{server}/v1/chat/completions", json={"messages": chat})
    assert (answer.status_code, encoded) == (400, [])


def test_a_prompt_that_does_not_fit_has_the_code_that_clients_look_for(server: str) -> None:
    asked = {"messages": [{"role": "user", "content": "x = 1\n" * 2000}]}
    for path, body, param in (
        ("chat/completions", asked, "messages"),
        ("completions", {"prompt": LONG}, "prompt"),
    ):
        error = httpx.post(f"{server}/v1/{path}", json=body).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def test_prompts_that_wait_for_a_thread_are_dropped_when_their_callers_leave(
    texts: TextRunner,
) -> None:
    gate, begun, told = threading.Event(), list[int](), list[bool]()

    def work(number: int) -> Any:
        def read(left: threading.Event) -> None:
            begun.append(number)
            assert gate.wait(WAIT)
            told.append(left.wait(WAIT))

        return read

    async def leave_all() -> None:
        tasks = [asyncio.create_task(texts.read(work(number))) for number in range(6)]
        await asyncio.to_thread(eventually, lambda: len(begun) == READERS)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        gate.set()

    asyncio.run(leave_all())
    eventually(lambda: len(told) == READERS)
    assert (begun, told) == (list(range(READERS)), [True] * READERS)


def test_more_texts_than_there_is_room_for_are_refused(texts: TextRunner) -> None:
    with pytest.raises(LimitExceeded, match="41 texts"):
        texts.check_room(41)


@pytest.mark.parametrize("field", ["model", "prompt_cache_key", "stop", "address"])
def test_half_of_a_surrogate_pair_in_any_field_is_a_wrong_request(server: str, field: str) -> None:
    path = "page/start" if field == "address" else "v1/completions"
    rest = "" if field == "address" else '"prompt": "abc", "max_tokens": 1, '
    body = f'{{{rest}"{field}": "\\ud800"}}'
    answer = httpx.post(
        f"{server}/{path}", content=body, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_what_was_sent_is_not_sent_back_without_a_bound(server: str) -> None:
    for more in ({"stop": ["y" * 4_000_000]}, {"model": "y" * 4_000_000}):
        answer = httpx.post(f"{server}/v1/completions", json={"prompt": "abc"} | more)
        assert 400 <= answer.status_code < 500
        assert len(answer.content) < 2 * MOST_SIGNS


def test_a_body_without_its_header_is_told_which_one_is_missing(server: str) -> None:
    answer = httpx.post(f"{server}/v1/completions", content=b'{"prompt": "abc"}')
    assert answer.status_code == 400
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


def test_a_prompt_that_comes_again_is_counted_as_cached(
    server: str, manager: TargetManager
) -> None:
    asked = {"prompt": "def again(x):\n    return x\n" * 8, "max_tokens": 2, "temperature": 0}
    first, second = (
        httpx.post(f"{server}/v1/completions", json=asked, timeout=WAIT).json()["usage"]
        for _ in range(2)
    )
    assert set(first["prompt_tokens_details"]) == {"cached_tokens"}
    assert 0 < second["prompt_tokens_details"]["cached_tokens"] <= second["prompt_tokens"]
    assert httpx.get(f"{server}/v1/models").json()["data"][0]["created"] > 0
