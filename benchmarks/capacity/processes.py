"""The processes of a measurement: one target, a few that hold all users, and what they tell."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.capacity.client import Came, User
from inference.errors import Unavailable
from outrider.target.spawn import role_environment

CLIENT_PROCESSES = 2
_STOP_SECONDS = 10.0


class Spoken:
    """A process of ours that answers a line of JSON with a line of JSON."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = module
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env=role_environment(),
        )

    def ask(self, question: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Unavailable(f"{self._name} ended: exit status {self.process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Played(NamedTuple):
    """What came of some users. before, after: what the target had done when the window of
    measurement began, and when it ended.
    """

    came: list[Came]
    before: dict[str, float]
    after: dict[str, float]

    def grown(self, name: str) -> float:
        """By how much a counter grew in the window."""
        return self.after[name] - self.before[name]

    @property
    def problems(self) -> list[str]:
        return [one.problem for one in self.came if one.problem]


class Fleet:
    """A target at `address`, and processes for its users."""

    def __init__(self, target: Spoken, address: str, clients: Sequence[Spoken]) -> None:
        self.address, self._target, self._clients = address, target, clients

    def play(self, users: Sequence[User], window: tuple[float, float]) -> Played:
        """Let the users come, and return when all have left. window: moments of the clock."""
        for index, client in enumerate(self._clients):
            client.ask([asdict(user) for user in users[index :: len(self._clients)]])
        told = []
        for moment in window:
            time.sleep(max(moment - time.monotonic(), 0.0))
            told.append(self.told())
        came = [Came(**one) for client in self._clients for one in client.answer()]
        return Played(sorted(came, key=lambda one: one.number), *told)

    def told(self) -> dict[str, float]:
        """What the target has done so far."""
        self._target.ask("")
        answer: dict[str, float] = self._target.answer()
        return answer


@contextmanager
def fleet(curve: str, slower: float, rows: int, length: int, *more: str) -> Iterator[Fleet]:
    """Everything started, and ended with the context. more: flags of the target."""
    flags = [curve, f"--slower={slower}", f"--rows={rows}", f"--length={length}", *more]
    with ExitStack() as stack:
        target = Spoken("benchmarks.capacity.target", *flags)
        stack.callback(target.end)
        address = target.answer()
        clients = [Spoken("benchmarks.capacity.client") for _ in range(CLIENT_PROCESSES)]
        for client in clients:
            stack.callback(client.end)
        yield Fleet(target, address, clients)
