"""Texts that end early: clients that leave, errors of the program, targets that are changed."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads
from typing import Any

import httpx
import pytest

from grpc_comm.server.server import BackgroundServer
from inference.errors import InvalidRequest, OutriderError, Unavailable
from outrider.client import connecting
from outrider.endpoint.run import SERVING
from outrider.endpoint.target_manager import TargetManager, TargetSettings
from outrider.endpoint.text_runner import READERS, TextRunner
from outrider.options.roles import ServeRole, TargetRole
from outrider.target.spawn import role_command, role_environment
from outrider.target.target import load_target
from outrider.text.completion import Completion
from outrider.text.parameters import Parameters
from outrider.text.pieces import Piece
from outrider.text.prompts import make_request, resume_request
from outrider.text.runner import CompletionStream
from tests.outrider.endpoint.conftest import opened, own, page_events, sent
from tests.support.wire_fixtures import WAIT, eventually, free_port

PROMPT = "def main():"
LONG = {"prompt": PROMPT, "max_tokens": 900, "temperature": 0}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions?streamed", "/page/texts"])
def test_a_client_may_leave_at_any_moment(server: str, texts: TextRunner, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 900}
    if not path.startswith("/page"):
        asked = LONG | {"stream": path.endswith("streamed"), "n": 2}
    body = json.dumps(asked).encode()
    place = server.removeprefix("http://")
    head = f"POST {path} HTTP/1.1\r\nHost: {place}\r\nContent-Length: {len(body)}\r\n"
    whole = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
    moments = [(9, 0), (len(whole) - 1, 0), *((len(whole), 2**n / 1000) for n in range(9))]
    for count, seconds in moments:
        with sent(server, whole[:count]):
            time.sleep(seconds)
        eventually(lambda: not texts.running)


def _breaks(put: Callable[[Piece], None], end: Event) -> Completion:
    raise RuntimeError("this is a defect")


async def _make(texts: TextRunner) -> None:
    async for _ in texts.run([_breaks]):
        pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_a_texts_thread_ends_its_request(texts: TextRunner) -> None:
    with pytest.raises(OutriderError, match="internal error"):
        asyncio.run(asyncio.wait_for(_make(texts), 20))
    assert not texts.running
    with CompletionStream(_breaks) as stream, pytest.raises(OutriderError, match="internal error"):
        next(stream)
    eventually(lambda: all(thread.name != "text" for thread in enumerate_threads()))  # it told


def test_a_search_for_a_target_does_not_delay_the_end_of_a_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute, ThreadPoolExecutor(1) as pool:
        role = ServeRole(port=mute.getsockname()[1], draft="none", patience=600.0)
        manager = TargetManager(role)
        opening = pool.submit(manager.open)
        connection, _ = mute.accept()
        manager.close()
        with connection, pytest.raises(Unavailable):
            opening.result(WAIT)


def test_prompts_that_wait_for_a_thread_are_dropped_when_their_callers_leave(
    texts: TextRunner,
) -> None:
    gate, begun, told = Event(), list[int](), list[bool]()

    def work(number: int) -> Any:
        def read(left: Event) -> None:
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


@pytest.mark.parametrize("streamed", [False, True])
def test_a_text_that_a_stopped_target_cut_does_not_look_whole(target: str, streamed: bool) -> None:
    asked = LONG | {"stream": streamed}
    with opened(target) as (manager, texts, address), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.post, f"{address}/v1/completions", json=asked, timeout=60)
        eventually(lambda: bool(texts.running))
        manager.close("the target was stopped")
        if not streamed or answer.result().status_code == 503:  # it was cut before it began
            assert answer.result().json()["error"]["code"] == "target_unavailable"
            return
        *_, error, done = answer.result().text.strip().split("\n\n")
        message = json.loads(error.removeprefix("data: "))["error"]["message"]
        assert message == "the target was stopped"
        assert done == "data: [DONE]"


def test_when_all_is_spent_texts_are_refused(target: str) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 40}
    with opened(target, usd_per_hour=1000.0, max_usd=0.000001) as (*_, address):
        first = httpx.post(f"{address}/v1/completions", json=asked, timeout=60)
        if first.is_success:  # or all was spent before its first token came
            assert first.json()["choices"][0]["finish_reason"] == "length"
        error = httpx.post(f"{address}/v1/completions", json=asked, timeout=60).json()["error"]
    assert "--max_usd" in error["message"]


def test_no_text_begins_with_a_target_that_was_stopped(target: str) -> None:
    manager = TargetManager(ServeRole(target_host=target, draft="none"))
    texts = manager.open()
    manager.close("the target was stopped")
    for begin in (lambda: asyncio.run(_make(texts)), manager.open):
        with pytest.raises(Unavailable, match="the target was stopped"):
            begin()
    with pytest.raises(Unavailable, match="is closed"):
        texts.client.target.probe()


def test_the_servers_own_token_is_for_its_own_target_only(target: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("t" * 20, encoding="utf-8")
    manager = TargetManager(ServeRole(target_host=target, draft="none", token_file=str(token)))
    with closing(manager):
        manager.open(TargetSettings(address=target, draft="none"))
        assert manager.options.token_file == str(token)
        texts = manager.open(TargetSettings(address=target, draft="none", token="u" * 20))
        assert manager.options.token_file is not None
        assert Path(manager.options.token_file).read_text(encoding="utf-8") == "u" * 20 + "\n"
        with pytest.raises(InvalidRequest):
            manager.open(TargetSettings(address="a:b:c,"))
        assert manager.texts is texts, "settings that are not allowed change nothing"
        with pytest.raises(Unavailable):
            manager.open(TargetSettings(address="127.0.0.1:1", draft="none"))
        assert manager.options.token_file is None


def test_starts_at_once_leave_one_target_and_requests_look_for_it_together(target: str) -> None:
    tried = list[None]()

    class Counting(TargetManager):
        def open(self, settings: TargetSettings | None = None) -> TextRunner:
            tried.append(None)
            time.sleep(0.05)
            return super().open(settings)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(absent.get() for _ in range(8)), return_exceptions=True)

    absent = Counting(ServeRole(port=free_port(), draft="none"))
    assert [answer.status for answer in asyncio.run(ask())] == [503] * 8
    assert len(tried) == 1
    manager = TargetManager(ServeRole(target_host=target, draft="none"))
    with closing(manager), ThreadPoolExecutor(3) as pool:
        list(pool.map(manager.open, [TargetSettings(address=target, draft="none")] * 3))
        assert manager.texts is not None
        manager.texts.client.target.probe()


def text_of(events: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(data["text"] for name, data in events if name in ("made", "piece"))


@pytest.mark.parametrize("stops", [False, True])
def test_a_text_goes_on_behind_any_of_its_tokens_as_it_would_have(
    http: httpx.Client, texts: TextRunner, stops: bool
) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 30}
    asked |= {"temperature": 0.8, "seed": 5}
    whole = page_events(http, asked)
    tokens = [data for name, data in whole if name == "tokens"]
    ids, words = ([value for data in tokens for value in data[key]] for key in ("ids", "texts"))
    text = own(texts, PROMPT, max_tokens=30, temperature=0.8, seed=5).text
    assert text_of(whole) == text
    assert {"piece", "tokens", "figures", "end"} <= {kind for kind, _ in whole}
    assert whole[-1][1]["reason"] == "length"
    if stops:
        asked["stop"] = ["".join(words[8:12])]  # of several tokens
        text = text.partition(asked["stop"][0])[0]
    for cut in (1, 2, 5, 9, 10, 17, 29):
        (name, before), *rest = page_events(http, asked | {"made": ids[:cut]})
        assert text_of([(name, before), *rest]) == text
        assert stops or (before["tokens"], rest[-1][1]["tokens"]) == (cut, 30 - cut)
    for wrong in [[10**6]] if stops else [[10**6], ids[:30]]:
        refused = http.post("/page/texts", json=asked | {"made": wrong})
        assert refused.json()["error"]["type"] == "invalid_request_error"


def test_a_text_that_broke_off_within_a_character_goes_on_with_that_character(
    texts: TextRunner,
) -> None:
    client = texts.client
    request = make_request(client.text_model, PROMPT, Parameters(100))
    written = "x = 'é漢字🙂 ü'"
    made = client.tokenizer.encode(written)
    assert len(made) > len(written)  # characters of several tokens
    for cut in range(1, len(made)):
        rest, text, kept = resume_request(client.text_model, request, made[:cut])
        stream = client.tokenizer.stream(rest.ids)
        text += "".join(map(stream.push, made[kept:])) + stream.finish()
        assert text == written
        assert rest.max_new_tokens == 100 - kept


def test_the_page_is_told_whether_the_target_answers() -> None:
    with (
        BackgroundServer(load_target(TargetRole(port=0, batch=1))) as served,
        opened(str(served.address)) as (*_, address),
    ):
        state = httpx.get(f"{address}/page/state", timeout=60).json()
        assert (state["running"], state["trouble"]) == (True, None)
        served.stop()
        state = httpx.get(f"{address}/page/state", timeout=60).json()
        assert str(served.address) in state["trouble"]
        assert "UNKNOWN" not in state["trouble"]


def test_a_knob_whose_positions_ask_for_the_same_cannot_be_turned(target: str) -> None:
    with opened(target, draft="model,copy", usd_per_hour=1.34) as (_, texts, address):
        texts.client.wait()
        refused = httpx.post(f"{address}/page/steer", json={"cs": 50}, timeout=60)
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert httpx.get(f"{address}/page/state", timeout=60).json()["unsteered"] == message
        assert "api_cost is proportional to time" in message
        assert httpx.post(f"{address}/page/steer", json={"cs": 0}, timeout=60).is_success


@pytest.mark.extended
def test_a_stream_may_end_after_the_first_signal_to_the_server(target: str) -> None:
    command = role_command("serve", "--target_host", target, "--http_port", "0", "--draft", "none")
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=role_environment()
    ) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith(SERVING))
        (address,) = re.findall(r"(http://\S+/v1)", line)
        asked = LONG | {"max_tokens": 32, "stream": True}
        with httpx.stream("POST", f"{address}/completions", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.terminate()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.wait(60) == 0
