"""Planted faults that the simulator must find. Each is a patch of the product for one run."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from grpc_comm.client.call import Call
from grpc_comm.client.remote_session import RemoteSession
from grpc_comm.client.replicas import Replicas
from grpc_comm.keys import Grant, KeysFile
from grpc_comm.server.sender import Sender
from grpc_comm.server.session_table import SessionRecord, SessionTable
from grpc_comm.server.state import ServerState
from grpc_comm.server.stream import Stream
from inference.drafters.growing_proposer import GrowingProposer
from inference.engine import scheduler
from inference.engine.admission import Admission
from inference.engine.sessions.log_probs import PromptScores
from inference.engine.sessions.session import Session


class Edit(NamedTuple):
    """A function or a property, and words of its source in whose place others stand."""

    holder: Any
    name: str
    before: str
    after: str


PLANTS: dict[str, Edit] = {
    "resume one token late": Edit(
        Stream, "_own", "session, stream, length,", "session, stream, length + (record.epoch > 0),"
    ),
    "an ack lost": Edit(
        Call, "send", "self._outbox", '"ack" in kind and not kind["ack"].length % 5 or self._outbox'
    ),
    "a lease not renewed": Edit(
        SessionRecord, "give_to_new_stream", "(), None", "(), self.expires"
    ),
    "credit off by one": Edit(
        Session, "allowed", "self.acknowledged + self.credit", "self.acknowledged + self.credit + 1"
    ),
    "a stale stream believed": Edit(
        SessionRecord, "give_to_new_stream", "= epoch, asyncio", "= self.epoch, asyncio"
    ),
    "a cancelled session's row kept": Edit(
        Admission, "remove_closed", "self._vacate", "session.order or self._vacate"
    ),
    "an expired session's end not told": Edit(
        SessionTable,
        "expire",
        "self.end(record, Ending.EXPIRED)",
        "self._records.pop(record.name), record.close(), self._counts.subtract([record.tenant])",
    ),
    "a resume key not compared": Edit(
        SessionTable, "resume", "not hmac.compare_digest(record.resume_key, key)", "False"
    ),
    "detached sessions not counted": Edit(
        SessionTable, "check_room", "len(mine) < limit", "sum(not r.expires for r in mine) < limit"
    ),
    "a revoked key's streams live on": Edit(
        Grant, "withdrawn", "return self._withdrawn", "return False"
    ),
    "rows shared between tenants": Edit(ServerState, "prefix_tenant", "key.name", '""'),
    "drained before the end": Edit(Session, "_ended", "is None:", "is None or self._drained:"),
    "signs of life of a hung target": Edit(
        Sender, "_send_progress", "due and not is_hung(self._engine)", "due"
    ),
    "tokens made before not told": Edit(
        RemoteSession, "_opening", "self._params.made + self._received.made", "self._params.made"
    ),
    "rows for who has most": Edit(
        Admission, "line", "rows[session.tenant]", "-rows[session.tenant]"
    ),
    "keys that a disk failed to read": Edit(KeysFile, "changed", "self.unread or ", ""),
    "candidates never sent": Edit(RemoteSession, "propose", "call.backlog < MAX_BACKLOG", "False"),
    "recall lost on a new stream": Edit(
        GrowingProposer, "on_new_stream", "self._tree.recall()", "pass"
    ),
    "a width for one session's gain": Edit(
        scheduler, "plan_width", "needed).all()", "needed).any()"
    ),
    "replicas that do not serve first": Edit(
        Replicas, "order", "not replica.serves", "bool(replica.serves)"
    ),
    "work counted again after a resume": Edit(
        RemoteSession, "_handle_opened", "if not resumed:", "if True:"
    ),
    "a first call without patience": Edit(
        Replicas, "_meet", "time.monotonic() + patience.seconds", "time.monotonic()"
    ),
    "a cached prompt not scored": Edit(
        PromptScores, "missing", "len(self.logprobs) < self._wanted", "False"
    ),
    "patience renewed by each loss": Edit(
        RemoteSession, "_start_search", "self._deadline is None", "True"
    ),
}
"""By name."""


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Let a fault be in the product. "": none is"""
    if not fault:
        yield
        return
    holder, name, before, after = PLANTS[fault]
    kept = vars(holder)[name]
    function: Any = kept.fget if isinstance(kept, property) else kept
    source, made = textwrap.dedent(inspect.getsource(function)), dict[str, Any]()
    assert source.count(before) == 1, f"{name} reads otherwise"
    source = source.replace(before, after).replace("super()", f"super({holder.__name__}, self)")
    text = f"from __future__ import annotations\n{source}"
    exec(text, function.__globals__, made)
    with patch.object(holder, name, made[name]):
        yield
