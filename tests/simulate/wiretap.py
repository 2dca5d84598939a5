"""Looks at every message where a target reads or writes it, and knows what may not be."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from grpc_comm.proto import verifier_pb2 as pb
from inference.order import MOST_CREDIT
from tests.simulate.kernel import Kernel
from tests.simulate.plan import TENANTS
from tests.simulate.target_process import SESSIONS
from tests.simulate.wire_server import Served

SESSION = "/outrider.v1.Target/Session"


class Spoken:
    """What was said on one stream. acknowledged: length that the target knows its client to have"""

    def __init__(self) -> None:
        self.session_id, self.acknowledged, self.credit = "", 0, MOST_CREDIT


class Wiretap:
    """wrong: what must not be, a line each"""

    def __init__(self, kernel: Kernel) -> None:
        self.wrong: list[str] = []
        self._kernel = kernel
        self._streams: dict[Served, Spoken] = {}

    def __call__(self, served: Served, way: str, data: bytes) -> None:
        if served.call.method != SESSION:
            return
        spoken = self._streams.setdefault(served, Spoken())
        try:
            message = (pb.ClientMessage if way == "up" else pb.ServerMessage).FromString(data)
        except DecodeError:
            return self._tell(served, "what cannot be read")
        kind = message.WhichOneof("kind") or "nothing"
        self._tell(served, f"{way} {kind} {_short(getattr(message, kind, None))}")
        if way == "up":
            self._hear(spoken, kind, message)
        elif kind == "opened":
            self._check_opened(served, spoken, message)
        elif kind == "tokens":
            self._check_tokens(served, spoken, message)

    def _tell(self, served: Served, what: str) -> None:
        names = served.server.process.name, served.call.channel.process.name
        self._kernel.tell(f"{names[0]} and {names[1]}: {what}")

    def _hear(self, spoken: Spoken, kind: str, message: pb.ClientMessage) -> None:
        if kind in ("open", "resume") and spoken.session_id:
            return  # it is refused
        if kind == "open":
            spoken.session_id = message.open.session_id
            spoken.acknowledged = len(message.open.prompt)
        elif kind == "resume":
            spoken.session_id = message.resume.session_id
            spoken.acknowledged = message.resume.length
        elif kind == "ack":
            spoken.acknowledged = max(spoken.acknowledged, message.ack.length)
        elif kind == "decode":
            spoken.credit = message.decode.credit or MOST_CREDIT

    def _check_opened(self, served: Served, spoken: Spoken, message: pb.ServerMessage) -> None:
        if message.opened.session_id != spoken.session_id:
            self.wrong.append("a client is told of another session than its own")
        if served.call.metadata:
            held = served.server.process.holds["session records"]
            crowds = [tenant for tenant in TENANTS if held.count(tenant) > SESSIONS]
            self.wrong += [f"{tenant} has {held.count(tenant)} sessions" for tenant in crowds]

    def _check_tokens(self, served: Served, spoken: Spoken, message: pb.ServerMessage) -> None:
        length = message.tokens.position + len(message.tokens.ids)
        if message.tokens.ids and length > spoken.acknowledged + spoken.credit:
            self.wrong.append(
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
