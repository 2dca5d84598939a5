"""A client process with many of the users, each on a thread. Imports no torch.

Told on stdin: a line with a list of users. Tells on stdout, as a line of JSON, what came of them
when all have ended.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.capacity.script import (
    SKILLS,
    VOCABULARY,
    GrowingDraft,
    RoundDraft,
    Text,
    WideDraft,
)
from grpc_comm.client.connection import Connection, connect
from grpc_comm.security import PLAINTEXT, SecurityOptions
from inference.decode import decode
from inference.errors import OutriderError
from inference.order import Decode, Pace
from inference.proposer import Proposer
from inference.sampling import SamplingParams

ALONE, GROWING, ROUNDS, WIDE = "target-only", "growing", "synchronous", "wide"
"""What a user does; `wide` claims that all of its full trees are certain."""

CONNECT_SECONDS = 60.0


@dataclass(frozen=True)
class User:
    """One session. prompt: its seed, of a text of `context` tokens.  starts, until: moments of the
    monotonic clock; it leaves at the second.  tokens: at most so many.  call_seconds: of its draft.
    token_file: its key's.
    """

    number: int
    address: str
    arm: str
    temperature: float
    context: int
    prompt: int
    tokens: int
    starts: float
    until: float
    call_seconds: float
    token_file: str = ""


@dataclass
class Came:
    """What a user got. events: when tokens came, and how many.  problem: what should not have
    been.
    """

    number: int
    arm: str
    starts: float
    events: list[tuple[float, int]] = field(default_factory=list)
    problem: str = ""


def proposers(user: User) -> list[Proposer]:
    """None, or its draft."""
    skill = SKILLS[user.temperature]
    if user.arm == GROWING:
        return [GrowingDraft(skill, user.call_seconds)]
    if user.arm == ROUNDS:
        return [RoundDraft(skill, user.call_seconds)]
    return [WideDraft(skill)] if user.arm == WIDE else []


def attend(user: User, connection: Connection, came: Came) -> None:
    """One session from its opening to its end; its text is held against what it should be."""
    prompt = random.Random(user.prompt).choices(range(VOCABULARY), k=user.context)  # noqa: S311
    params = SamplingParams(user.temperature, seed=user.number)
    pace = Pace.WAIT if user.arm == ROUNDS else Pace.GO_ON
    order, text = Decode(user.context + user.tokens, pace=pace), Text(prompt, user.number)
    session, length = connection.session(), user.context
    time.sleep(max(user.starts - time.monotonic(), 0.0))
    try:
        for step in decode(prompt, params, session, order, proposers(user)):
            now = time.monotonic()
            if step.tokens:
                came.events.append((now, len(step.tokens)))
                due = [text.at(length + index) for index in range(len(step.tokens))]
                if list(step.tokens) != due and not came.problem:
                    came.problem = f"user {user.number} differs from token {length} on"
                length += len(step.tokens)
            if now > user.until:
                break
    except OutriderError as error:
        came.problem = f"user {user.number}: {type(error).__name__}: {error}"
    session.close()


def attend_all(users: Sequence[User], connections: dict[tuple[str, str], Connection]) -> list[Came]:
    """All of them at once; connections are kept for later."""
    came = [Came(user.number, user.arm, user.starts) for user in users]
    threads = []
    for user, one in zip(users, came, strict=True):
        key = (user.address, user.token_file)
        if key not in connections:
            token = Path(user.token_file) if user.token_file else None
            security = SecurityOptions(token_file=token) if token else PLAINTEXT
            connections[key] = connect(user.address, security=security, timeout=CONNECT_SECONDS)
        threads.append(threading.Thread(target=attend, args=(user, connections[key], one)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def main() -> int:
    """Attend to one list after another, until stdin ends."""
    connections = dict[tuple[str, str], Connection]()
    for line in sys.stdin:
        came = attend_all([User(**one) for one in json.loads(line)], connections)
        print(json.dumps([asdict(one) for one in came]), flush=True)
    for connection in connections.values():
        connection.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
