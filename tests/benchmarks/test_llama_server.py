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


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (order["prompt"], order["n_predict"]) == ([5, 6], 3)
        self.send_response(200)
        self.end_headers()
        for event in self.server.events:  # type: ignore[attr-defined]
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


def generated(server: HTTPServer, events: list[dict[str, Any]]) -> Completion:
    server.events = events  # type: ignore[attr-defined]
    address = f"127.0.0.1:{server.server_port}"
    arm = rival_arm(
        "llama.cpp",
        lambda request, hear: llama_server.play(address, request, hear),
        Tokenizer(EMBEDDED / "target"),
        Billing(),
    )
    return arm.make(Request(0, "", [5, 6], SamplingParams(), 3, frozenset([40])), Event())


def test_a_streamed_answer_is_a_text(server: HTTPServer) -> None:
    done = generated(server, EVENTS)
    assert (done.token_ids, done.chunk_tokens, done.traffic.forwards) == ([20, 30, 40], [1, 2], 2)
    assert done.finish_reason == "stop"


def test_a_stream_that_breaks_off_is_no_text(server: HTTPServer) -> None:
    with pytest.raises(Unavailable, match="ended a text without its figures"):
        generated(server, EVENTS[:2])
