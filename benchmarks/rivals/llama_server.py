"""Arms of llama.cpp: servers that were started with the flags of their arms (docs/measured.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection

from benchmarks.rivals.arm import Hear
from inference.errors import Unavailable
from outrider.text.completion import Request

ANSWER_SECONDS = 900.0
_DATA = b"data: "


def play(address: str, request: Request, hear: Hear) -> int:
    """Stream a greedy text from the server at HOST:PORT; the prompt is computed anew. Raises
    Unavailable where the server refuses.
    """
    body = {
        "prompt": list(request.ids),
        "n_predict": request.max_new_tokens,
        "temperature": 0,
        "top_k": 1,
        "samplers": ["top_k", "temperature"],
        "cache_prompt": False,
        "stream": True,
        "return_tokens": True,
    }
    with closing(HTTPConnection(address, timeout=ANSWER_SECONDS)) as line:
        headers = {"Content-Type": "application/json"}
        line.request("POST", "/completion", json.dumps(body), headers)
        answer = line.getresponse()
        if answer.status != 200:
            reason = answer.read().decode(errors="replace").strip()
            raise Unavailable(f"llama-server refuses a text: {reason}")
        return read_events(answer, hear)


def read_events(lines: Iterable[bytes], hear: Hear) -> int:
    """Read a streamed text. Returns the forward passes: each brings what it accepted and one token.
    Raises Unavailable where the stream breaks off.
    """
    for line in lines:
        if not line.startswith(_DATA):
            continue
        event = json.loads(line.removeprefix(_DATA))
        if event.get("error"):
            raise Unavailable(f"llama-server: {event['error']}")
        if event.get("tokens"):
            hear(event["tokens"])
        if event.get("stop"):
            timings = event["timings"]
            return int(timings["predicted_n"] - timings.get("draft_n_accepted", 0))
    raise Unavailable("llama-server ended a text without its figures")
