"""Checks every message where a target reads or writes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.server.sender import MAX_STEP_SECONDS
from inference.engine.prefix_cache import common_prefix
from inference.order import MAX_CREDIT
from tests.simulate.kernel import Kernel
from tests.simulate.plan import TENANTS, Plan
from tests.simulate.wire_server import Served
from tests.support.hostile import token_of

SESSION = "/outrider.v1.Target/Session"
MOST_LENGTH = 1 << 31

KEYS_SECONDS, REVOKED_SECONDS = 60.0, 3.0
"""After which a new keys file is in force, whatever happens, and where nothing delays it."""

LATE = frozenset({"freeze target", "clock jump", "spoil keys"})
"""Faults that delay it."""

UNSEEN = 8
"""Tokens that two texts may have in common by chance, before anybody was told of them."""


class Spoken:
    """What was said on one stream.

    acknowledged: length that the target knows its client to have
    tokens: of its text, as far as the stream told them
    is_theft: it resumes a session with another key than that session's
    """

    def __init__(self, tenant: str) -> None:
        self.session_id, self.acknowledged, self.credit = "", 0, MAX_CREDIT
        self.tenant, self.tokens, self.is_theft = tenant, list[int](), False
        self.end, self.stop_ids = MOST_LENGTH, frozenset[int]()


class Wiretap:
    """Adds what must not be to the kernel's crashes."""

    def __init__(self, kernel: Kernel, plan: Plan) -> None:
        self._wrong = kernel.crashes
        self._kernel, self._plan = kernel, plan
        self._streams: dict[Served, Spoken] = {}
        self._limits, self._revoked = [(0.0, plan.limit)], dict[str, float]()

    def note_keys(self, limit: int, without: frozenset[str]) -> None:
        """Note what a keys file says: sessions of a key, and tenants that have none."""
        now = self._kernel.now
        self._limits.append((now, limit))
        self._revoked = {tenant: self._revoked.get(tenant, now) for tenant in without}

    def __call__(self, served: Served, way: str, data: bytes) -> None:
        if served.call.method != SESSION:
            return
        sent = str(served.call.metadata)
        tenant = next((name for name in TENANTS if token_of(name) in sent), "")
        spoken = self._streams.setdefault(served, Spoken(tenant))
        try:
            message: Any = (pb.ClientMessage if way == "up" else pb.ServerMessage).FromString(data)
        except DecodeError:
            return self._tell(served, "what cannot be read")
        kind = message.WhichOneof("kind") or "nothing"
        self._tell(served, f"{way} {kind} {_short(getattr(message, kind, None))}")
        if way == "up":
            self._hear(served, spoken, kind, message)
        elif kind == "opened":
            self._check_opened(served, spoken, message)
        elif kind == "tokens":
            self._check_tokens(served, spoken, message)

    def _tell(self, served: Served, what: str) -> None:
        names = served.server.process.name, served.call.channel.process.name
        self._kernel.tell(f"{names[0]} and {names[1]}: {what}")

    def _hear(self, served: Served, spoken: Spoken, kind: str, message: pb.ClientMessage) -> None:
        if kind in ("open", "resume") and spoken.session_id:
            return  # it is refused
        if kind == "open":
            spoken.session_id = message.open.session_id
            spoken.acknowledged = len(message.open.prompt)
            spoken.tokens = list(message.open.prompt)
            if message.open.frequency_penalty == 0.5:
                self._check_open(served, message.open)
        elif kind == "resume":
            spoken.session_id = message.resume.session_id
            spoken.acknowledged = message.resume.length
            held = served.server.process.holds["session records"].records
            record = held.get((spoken.tenant, spoken.session_id))
            spoken.tokens = next(
                other.tokens
                for other in self._streams.values()
                if other is spoken or other.session_id == spoken.session_id
            )
            spoken.is_theft = record and record.resume_key != message.resume.resume_key
        elif kind == "ack":
            spoken.acknowledged = max(spoken.acknowledged, message.ack.length)
        elif kind == "decode":
            spoken.credit = message.decode.credit or MAX_CREDIT
            spoken.end, spoken.stop_ids = message.decode.end, frozenset(message.decode.stop_ids)

    def _check_open(self, served: Served, opening: pb.Open) -> None:
        number = int(served.call.channel.process.name.removeprefix("client"))
        client = next(one for one in self._plan.clients if one.number == number)
        prompt = tuple(opening.prompt)
        firsts = [
            len(one.prompt) for one in client.texts if prompt[: len(one.prompt)] == one.prompt
        ]
        if not client.hostile and opening.made not in {len(prompt) - first for first in firsts}:
            self._wrong.append(f"{opening.made} of {len(prompt)} tokens are said to be made")

    def _check_opened(self, served: Served, spoken: Spoken, message: pb.ServerMessage) -> None:
        if message.opened.session_id != spoken.session_id:
            self._wrong.append("a client is told of another session than its own")
        if spoken.is_theft:
            self._wrong.append("a session is resumed without its key")
        held = served.server.process.holds["session records"]
        if len(held) > 2 * (self._plan.rows + self._plan.waiting):
            self._wrong.append(f"a target holds {len(held)} sessions")
        if not spoken.tenant:
            return
        count = sum(one.tenant == spoken.tenant for one in held.records.values())
        before = [limit for at, limit in self._limits if at <= self._kernel.now - KEYS_SECONDS]
        limits = [*before[-1:], *(limit for _, limit in self._limits[len(before) :])]
        if count > max(limits):
            self._wrong.append(f"{spoken.tenant} has {count} sessions, and may have {limits}")
        if not self._plan.sharing and message.opened.reused_tokens > (most := self._own(served)):
            words = f"{message.opened.reused_tokens} keys, and had {most} of this text"
            self._wrong.append(f"{spoken.tenant} reuses {words}")

    def _own(self, served: Served) -> int:
        """The most keys of this stream's text that its tenant may know to be there."""
        spoken = self._streams[served]
        others = [
            common_prefix(other.tokens, np.array(spoken.tokens))
            for stream, other in self._streams.items()
            if other is not spoken and other.tenant == spoken.tenant
            if stream.server is served.server
        ]
        return max(others, default=0) + UNSEEN

    def _check_tokens(self, served: Served, spoken: Spoken, message: pb.ServerMessage) -> None:
        ids, end = list(message.tokens.ids), message.tokens.end
        length = message.tokens.position + len(ids)
        spoken.tokens[message.tokens.position : length] = ids
        computes = self._kernel.now - served.server.process.computes_since
        if not ids and end == pb.Tokens.NOT and computes > MAX_STEP_SECONDS + 1:
            self._wrong.append(f"a sign of life after {computes:.0f} s of one forward")
        if end == pb.Tokens.DRAINED and (length >= spoken.end or spoken.stop_ids & {*ids[-1:]}):
            self._wrong.append("a text that ended is said to go on elsewhere")
        reads = served.server.process.fails_until
        revoked = self._kernel.now - max(self._revoked.get(spoken.tenant, math.inf), reads)
        late = not LATE & {fault.kind for fault in self._plan.faults}
        if ids and revoked > REVOKED_SECONDS and late:
            self._wrong.append(f"tokens for {spoken.tenant}, revoked {revoked:.1f} s ago")
        if message.tokens.ids and length > spoken.acknowledged + spoken.credit:
            self._wrong.append(
                f"{length} tokens are sent, of which {spoken.acknowledged} are acknowledged, and "
                f"the credit is {spoken.credit}"
            )


def _short(part: Message | None) -> str:
    """What a message says, on one line, without what is long."""
    said = [] if part is None else part.ListFields()
    return " ".join(
        f"{field.name}={len(value) if hasattr(value, '__len__') else value}"
        for field, value in said
        if not isinstance(value, Message)
    )
