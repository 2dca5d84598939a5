"""One client process of benchmarks.storm: its sessions, each on a thread. Imports no torch.

Told on stdin: a line of jobs, then `go`. Tells on stdout, a JSON object a line: that it is ready, tokens as they come, how each session ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.scripted import ScriptedDraft, Text
from grpc_comm.client import Connection, connect
from grpc_comm.remote import Patience, RemoteVerifier
from inference.accept import Verdict
from inference.decode import decode
from inference.errors import OutriderError
from inference.policy import Budget
from inference.sampling import SamplingParams
from inference.tree import TokenTree

NODES = 12
"""Of a tree, the root included; a busy target asks for fewer."""

DRAFT_SECONDS = 0.03
"""Of a draft: this one knows the text, and others take their time."""

BEYOND = 8
"""Tokens after a text's end that its drafter is told, too."""

READY, GO = "ready", "go"
FINISHED, CANCELLED, FAILED = "finished", "cancelled", "failed"


@dataclass(frozen=True)
class Job:
    """One session: what to ask of whom, and when to leave.

    addresses: as connect() takes them.  text: what the target makes of the prompt, and BEYOND tokens more.  tokens: how many to ask for.
    alone: the target decodes alone.  leave_at: tokens after which the client leaves; with a round under way if `abruptly`.
    """

    session: int
    addresses: str
    prompt: list[int]
    text: list[int]
    tokens: int
    temperature: float
    seed: int
    alone: bool
    leave_at: int | None
    abruptly: bool
    patience: float


class Scripted:
    """A Drafter that knows the text and makes mistakes."""

    def __init__(self, text: Sequence[int], vocabulary: int, turn: int) -> None:
        self._text, self._vocabulary, self._turn = text, vocabulary, turn

    def open(self, prompt: Sequence[int], params: SamplingParams) -> None:
        self._draft = ScriptedDraft(
            Text([*prompt, *self._text], len(prompt)), self._vocabulary, self._turn
        )

    def draft(self, root: int, budget: Budget) -> TokenTree:
        time.sleep(DRAFT_SECONDS)
        levels = min(budget.depth, NODES.bit_length())
        return self._draft.draft(root, min(NODES, budget.nodes + 1, 2 ** (levels + 1) - 1))

    def ahead(self) -> bool:
        return False

    def commit(self, tree: TokenTree, verdict: Verdict) -> None:
        self._draft.commit(verdict)

    def close(self) -> None: ...


class Teller:
    """Writes lines that no other thread's cut in two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def tell(self, **what: Any) -> None:
        with self._lock:
            print(json.dumps(what), flush=True)


def pieces(job: Job, connection: Connection, verifier: RemoteVerifier) -> Iterator[list[int]]:
    """The text as it comes."""
    params = SamplingParams(job.temperature, seed=job.seed)
    if job.alone:
        verifier.open(job.prompt, params).result()
        yield from ([token] for token in verifier.generate(job.tokens, frozenset()))
    else:
        drafter = Scripted(job.text, connection.description.vocabulary, turn=job.session)
        yield from (
            step.tokens for step in decode(job.prompt, params, drafter, verifier, job.tokens)
        )


def attend(job: Job, connection: Connection, teller: Teller) -> None:
    """One session from its opening to its end."""
    verifier, made, said = connection.verifier(), [job.prompt[-1]], ""
    ended = FINISHED
    try:
        for piece in pieces(job, connection, verifier):
            made += piece
            teller.tell(session=job.session, tokens=piece)
            if job.leave_at is not None and len(made) > job.leave_at:
                ended = CANCELLED
                break
        if ended == CANCELLED and job.abruptly and not job.alone:
            verifier.submit(TokenTree.chain(made[-1:]))  # nobody waits for it
    except OutriderError as error:
        ended, said = FAILED, f"{type(error).__name__}: {error}"
    verifier.close()
    traffic = verifier.traffic
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
