"""Who may call the endpoint, by which name, and for what; callers leave room for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from inference.errors import Busy, LimitExceeded, Unavailable
from inference.sampling import Grammar, GrammarKind, SamplingParams
from outrider.endpoint.access import MAX_HEAD_BYTES
from outrider.endpoint.interfaces.answering import completions
from outrider.endpoint.target_manager import TargetManager
from outrider.endpoint.text_runner import MAX_WAITING, GrammarTurns, TextRunner
from outrider.text.completion import Completion, Request
from tests.outrider.endpoint.conftest import http_server, opened, sent, until_closed
from tests.support.wire_fixtures import WAIT, eventually

ALICE, BOB, ROOT = "alice-0123456789abcdef", "bob-0123456789abcdef", "root-0123456789abcdef"
TEXT: dict[str, Any] = {"prompt": "def main():", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("keys", [(ALICE,), ()])
@pytest.mark.parametrize("admin_keys", [(ROOT,), ()])
def test_only_an_administrator_changes_what_everybody_uses(
    target: str, keys: tuple[str, ...], admin_keys: tuple[str, ...]
) -> None:
    alice, root = bearer(ALICE), bearer(ROOT)
    start: dict[str, Any] = {"address": target, "draft": "none"}
    with opened(target, keys, admin_keys) as (manager, _, address):
        everybody = not keys and not admin_keys
        for path, asked in (("steer", {"cs": 0}), ("start", start), ("stop", {})):
            answer = httpx.post(f"{address}/page/{path}", json=asked, headers=alice, timeout=WAIT)
            refused = answer.status_code == 403
            assert refused is not everybody
            if refused:
                assert answer.json()["error"]["code"] == "admin_key_needed"
                assert manager.texts is not None
        asked = TEXT if not everybody else start
        path = "v1/completions" if not everybody else "page/start"
        assert httpx.post(f"{address}/{path}", json=asked, headers=alice, timeout=WAIT).is_success
        if admin_keys:
            assert httpx.post(f"{address}/v1/completions", json=TEXT, headers=root).is_success
            assert httpx.post(f"{address}/page/stop", headers=root).json()["running"] is False


HOSTS = {
    "127.0.0.1": True,
    "LOCALHOST:8000": True,
    "[::1]:8000": True,
    "proxy.example:443": True,
    "evil.example": False,
    "localhost.": False,
    "x@localhost": False,
    "localhost@evil": False,
    "localhost:80:80": False,
    "": False,
}


def test_another_name_for_this_machine_is_refused(manager: TargetManager) -> None:
    with http_server(manager, origins=("https://Proxy.example",)) as address:
        for host, is_served in HOSTS.items():
            answer = httpx.get(f"{address}/v1/models", headers={"Host": host})
            assert answer.status_code == (200 if is_served else 400), host
            assert is_served or "--origins" in answer.json()["error"]["message"]


def test_a_length_said_in_two_ways_ends_the_connection(server: str) -> None:
    smuggled = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    with sent(server, smuggled) as connection:
        answers = until_closed(connection)
    assert answers.count(b"HTTP/1.1 ") == 1
    assert answers.startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(("headers", "size"), [(1, MAX_HEAD_BYTES), (200, 1000)])
def test_a_whole_head_has_the_same_bound_as_one_in_pieces(
    server: str, headers: int, size: int
) -> None:
    with suppress(httpx.TransportError):  # it closes with bytes unread, which may lose its answer
        flood = {f"x-{number}": "y" * size for number in range(headers)}
        assert httpx.get(f"{server}/version", headers=flood).status_code in (400, 431)
    assert httpx.get(f"{server}/version").is_success


async def hold(
    texts: TextRunner, caller: str, count: int, gate: Event, grammar: Grammar | None = None
) -> None:
    """Make so many texts of a caller that do not begin and end when the gate opens."""

    def wait(_put: Callable[[object], None], _end: Event) -> Completion:
        assert gate.wait(WAIT)
        raise Unavailable("the test ends")

    with suppress(Unavailable):
        await completions(texts.run([wait] * count, caller, grammar))


@contextmanager
def holding(texts: TextRunner, caller: str, count: int) -> Iterator[None]:
    gate, running = Event(), texts.running + count
    thread = Thread(target=lambda: asyncio.run(hold(texts, caller, count, gate)))
    thread.start()
    eventually(lambda: texts.running == running)
    yield
    gate.set()
    thread.join()


def test_a_caller_among_several_leaves_room_for_others(target: str) -> None:
    with opened(target, max_requests=8) as (_, texts, _), holding(texts, "alice", 6):
        with pytest.raises(Busy, match="6 of them for this caller"):
            texts.check_room(1, "alice")
        texts.check_room(1, "bob")
        texts.check_room(2)
        with pytest.raises(LimitExceeded, match="at most 6"):
            texts.check_room(7, "bob")
        with pytest.raises(LimitExceeded, match="9 texts"):
            texts.check_room(9)
        with holding(texts, "bob", 1), holding(texts, "carol", 1), pytest.raises(Busy):
            texts.check_room(1, "dave")


def test_each_key_is_a_caller_of_its_own(target: str) -> None:
    with opened(target, (ALICE, BOB), max_requests=2) as (_, texts, address):
        for path in ("v1/completions", "page/texts"):
            chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            asked = TEXT if path.startswith("v1") else chat
            with holding(texts, ALICE, 1):
                again, other = (
                    httpx.post(f"{address}/{path}", json=asked, headers=bearer(key), timeout=WAIT)
                    for key in (ALICE, BOB)
                )
            assert "of them for this caller" in again.text
            assert other.is_success
            assert "of them for this caller" not in other.text


def test_a_caller_has_one_new_grammar_at_the_target_and_known_ones_wait_for_nobody() -> None:
    turns = GrammarTurns()
    first, second, third, fourth = (Grammar(GrammarKind.REGEX, text) for text in "abcd")

    async def check(caller: str, grammar: Grammar | None) -> None:
        async with turns.turn(caller, grammar) as end:
            end()
            end()

    async def scene() -> None:
        async with turns.turn(ALICE, first):
            queued = [asyncio.create_task(check(ALICE, second)) for _ in range(MAX_WAITING)]
            await asyncio.sleep(0)
            with pytest.raises(Busy, match=f"{MAX_WAITING} texts with new grammars"):
                await check(ALICE, third)
            await check(ALICE, None)
            await check(BOB, third)
            await check(ALICE, third)  # BOB had it checked
            assert not any(task.done() for task in queued)
        await asyncio.gather(*queued)
        async with turns.turn(ALICE, first) as end:  # it was never checked
            waiting = asyncio.create_task(check(ALICE, fourth))
            await asyncio.sleep(0)
            assert not waiting.done()
            end()
            await waiting

    asyncio.run(scene())


def test_a_text_with_a_new_grammar_waits_for_its_callers_turn(target: str) -> None:
    gate = Event()
    first, second = (Grammar(GrammarKind.REGEX, text) for text in ("x+", "y{3}"))

    async def scene(texts: TextRunner) -> None:
        def text(params: SamplingParams, caller: str) -> Coroutine[Any, Any, list[Completion]]:
            request = Request(0, "", [5], params, 4, frozenset())
            task = partial(texts.client.complete, request)
            return completions(texts.run([task], caller, params.grammar))

        held = asyncio.create_task(hold(texts, ALICE, 1, gate, first))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(text(SamplingParams(grammar=second), ALICE))
        (done,) = await text(SamplingParams(presence_penalty=1.0), ALICE)
        assert len(done.token_ids) == 4
        assert not waiting.done()
        assert await text(SamplingParams(grammar=second), BOB)
        gate.set()
        assert await waiting
        await held

    with opened(target) as (_, texts, _):
        asyncio.run(scene(texts))
