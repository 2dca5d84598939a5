"""Arms of llama.cpp: its server, plain, with a draft model and with n-grams."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from benchmarks.rivals.arm import Hear, Play, Plays
from inference.command import say
from inference.errors import Unavailable
from outrider.processes import end
from outrider.text.completion import Request

PLAIN = "llama.cpp"
LENGTH = 2048
START_SECONDS, ANSWER_SECONDS = 180.0, 900.0
HOST = "127.0.0.1"

_DATA = b"data: "


def arm_flags(draft: str) -> dict[str, list[str]]:
    """Every arm by name: the flags that it adds to the server's. Numbers that are not stated are
    the server's defaults.
    """
    ngram = ["--spec-type", "ngram-simple"]
    short = ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "10"]
    return {
        PLAIN: [],
        f"{PLAIN} draft": ["--spec-type", "draft-simple", "-md", draft],
        f"{PLAIN} n-gram": ngram,
        f"{PLAIN} n-gram 3": [*ngram, *short],
        f"{PLAIN} n-gram cache": ["--spec-type", "ngram-cache"],
    }


ARMS = tuple(arm_flags(""))
"""Names of all arms."""


def play(port: int, request: Request, hear: Hear) -> int:
    """Stream a greedy text from the server at this port; the prompt is computed anew. Raises
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
    with closing(HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)) as line:
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


@contextmanager
def llama_server(binary: Path, flags: Sequence[str]) -> Iterator[Play]:
    """Start a server on a free port, and stop it with this context. Raises Unavailable, with its
    last lines, where it does not start.
    """
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [str(binary), "--host", HOST, "--port", str(port), *flags]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            if not _healthy(process, port):
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-5:]
                raise Unavailable(f"{binary} does not start: {' / '.join(last)}")
            yield partial(play, port)
        finally:
            end(process)


def _healthy(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a server is ready; False where it ended or took too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with closing(HTTPConnection(HOST, port, timeout=2.0)) as line:
                line.request("GET", "/health")
                if line.getresponse().status == 200:
                    return True
        except (OSError, HTTPException):
            pass
        time.sleep(0.2)
    return False


@contextmanager
def llama_servers(
    binary: Path, target: str, draft: str, threads: int, names: Sequence[str]
) -> Iterator[Plays]:
    """A server for each of these arms. All stay loaded."""
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    say(f"llama-server: {(version.stdout + version.stderr).strip().splitlines()[0]}")
    flags = ["-m", target, "-c", str(LENGTH), "-np", "1", "--cache-ram", "0", "--no-webui"]
    flags += ["-t", str(threads), "-tb", str(threads)]
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(llama_server(binary, [*flags, *more]))
            for name, more in arm_flags(draft).items()
            if name in names
        }
