"""What a server of llama.cpp streams is a text of its arm, with the forward passes that it took."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from typing import Any

import pytest

from benchmarks.rivals import llama_server
from benchmarks.rivals.arm import rival_arm
from inference.cost.billing import Billing
from inference.errors import Unavailable
from inference.sampling import SamplingParams
from inference.text.tokenizer import Tokenizer
from outrider.models.found_model import EMBEDDED
from outrider.text.completion import Completion, Request

EVENTS: list[dict[str, Any]] = [
    {"tokens": [20]},
    {"tokens": [30, 40]},
    {"tokens": [], "stop": True, "timings": {"predicted_n": 3, "draft_n_accepted": 1}},
]
"""Of a text of three tokens; the server breaks a shorter one off."""


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert order["prompt"] == [5, 6]
        self.send_response(200)
        self.end_headers()
        for event in EVENTS[: order["n_predict"]]:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


def test_a_streamed_answer_is_a_text_and_one_that_breaks_off_is_none(server: HTTPServer) -> None:
    address = f"127.0.0.1:{server.server_port}"
    arm = rival_arm(
        "llama.cpp",
        lambda request, hear: llama_server.play(address, request, hear),
        Tokenizer(EMBEDDED / "target"),
        Billing(),
    )

    def made(tokens: int) -> Completion:
        return arm.make(Request(0, "", [5, 6], SamplingParams(), tokens, frozenset([40])), Event())

    done = made(3)
    assert (done.token_ids, done.chunk_tokens, done.traffic.forwards) == ([20, 30, 40], [1, 2], 2)
    assert done.finish_reason == "stop"
    with pytest.raises(Unavailable, match="ended a text without its figures"):
        made(2)
