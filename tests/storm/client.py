"""One client process of a storm: its sessions, each on a thread. Imports no torch.

Told on stdin: a line of jobs, then `go`. Tells on stdout, a JSON object a line: that it is ready,
tokens as they come, how each session ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

from grpc_comm.client.connection import Connection, connect
from grpc_comm.client.patience import Patience
from grpc_comm.client.remote_session import RemoteSession
from inference.decode import Loop
from inference.draft_thread import inline, on_thread
from inference.errors import OutriderError
from inference.order import Decode, Pace
from inference.proposer import BASE, DraftUsage, Nodes, Notice, Proposal
from inference.sampling import SamplingParams

DEPTH = 6
"""Tokens of a draft."""

DRAFT_SECONDS = 0.03
"""Seconds of a draft: this one knows the text, and others take their time."""

BEYOND = 8
"""Tokens after a text's end that its draft knows, too."""

READY, GO = "ready", "go"
FINISHED, CANCELLED, FAILED = "finished", "cancelled", "failed"


@dataclass(frozen=True)
class Job:
    """One session: what to ask of whom, and when to leave.

    addresses: as connect() takes them.  text: what the target makes of the prompt, and BEYOND
    tokens more.  tokens: how many to ask for.  alone: without a draft.  waits: the target waits for
    the draft.  leave_at: tokens after which the client leaves; in the middle of an order if
    `abruptly`.
    """

    session: int
    addresses: str
    prompt: list[int]
    text: list[int]
    tokens: int
    temperature: float
    seed: int
    alone: bool
    waits: bool
    leave_at: int | None
    abruptly: bool
    patience: float


class Scripted:
    """A Proposer that knows the text and makes mistakes; right tokens stand beside wrong ones."""

    def __init__(self, text: Sequence[int], vocabulary: int, turn: int) -> None:
        self._text, self._vocabulary, self._turn = text, vocabulary, turn

    def open(self, prompt: Sequence[int], params: SamplingParams, end: int | None = None) -> None:
        self._prompt_length = self._length = len(prompt)
        self._due, self._made = True, False

    def hear(self, position: int, tokens: Sequence[int], now: float, notice: Notice | None) -> None:
        self._due = True
        if notice is not None:
            self._length = position + len(tokens)

    def work(self, now: float) -> DraftUsage | None:
        if not self._due:
            return None
        time.sleep(DRAFT_SECONDS)
        self._due, self._made = False, True
        return DraftUsage(1, DEPTH, DRAFT_SECONDS)

    def flush(self, now: float, next_number: Callable[[], int]) -> Nodes | None:
        if not self._made:
            return None
        self._made = False
        proposals, parent = list[Proposal](), BASE
        for token in self._text[self._length - self._prompt_length :][:DEPTH]:
            self._turn += 1
            if self._turn % 3 == 0:
                wrong = (token + 1) % self._vocabulary
                proposals.append(Proposal(next_number(), parent, wrong, 0.5))
            if self._turn % 5 == 0:
                break
            proposals.append(Proposal(number := next_number(), parent, token, 0.8))
            parent = number
        return Nodes(self._length - 1, proposals) if proposals else None

    def close(self) -> None: ...


class Teller:
    """Writes lines that no other thread's cut in two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, **what: Any) -> None:
        with self._lock:
            print(json.dumps(what), flush=True)


def pieces(job: Job, connection: Connection, session: RemoteSession) -> Iterator[list[int]]:
    """The text as it comes."""
    params = SamplingParams(job.temperature, seed=job.seed)
    pace = Pace.WAIT if job.waits else Pace.GO_ON
    order = Decode(len(job.prompt) + job.tokens, pace=pace)
    scripted = Scripted(job.text, connection.description.vocabulary, turn=job.session)
    drafter = inline() if job.alone else on_thread(lambda wanted: nullcontext([scripted]))
    with closing(Loop(job.prompt, params, session, order, drafter)) as loop:
        yield from (list(step.tokens) for step in loop.steps() if step.tokens)


def attend(job: Job, connection: Connection, teller: Teller) -> None:
    """One session from its opening to its end."""
    session, made, said = connection.session(), 0, ""
    ended = FINISHED
    try:
        for piece in pieces(job, connection, session):
            made += len(piece)
            teller.tell(session=job.session, tokens=piece)
            if job.leave_at is not None and made >= job.leave_at:
                ended = CANCELLED
                break
        if ended == CANCELLED and job.abruptly:  # nobody waits for it
            session.decode(Decode(len(job.prompt) + job.tokens + BEYOND))
    except OutriderError as error:
        ended, said = FAILED, f"{type(error).__name__}: {error}"
    session.close()
    traffic = session.traffic
    teller.tell(
        session=job.session,
        ended=ended,
        said=said,
        resumes=traffic.resumes,
        reopenings=traffic.reopenings,
    )


def main() -> int:
    """Attend to all jobs; 1 when something here has imported torch."""
    jobs = [Job(**one) for one in json.loads(sys.stdin.readline())]
    teller = Teller()
    connections = {
        job.addresses: connect(job.addresses, timeout=job.patience, patience=Patience(job.patience))
        for job in jobs
    }
    teller.tell(state=READY)
    if sys.stdin.readline().strip() != GO:
        return 1
    threads = [
        threading.Thread(target=attend, args=(job, connections[job.addresses], teller))
        for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections.values():
        connection.close()
    return int("torch" in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
