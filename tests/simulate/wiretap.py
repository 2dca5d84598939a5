"""Looks at every message where a target reads or writes it, and knows what may not be."""

from __future__ import annotations

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
        self._kernel.tell(f"{served.server.process.name} {way} {_short(served)} {len(data)} bytes")
        if served.call.method != SESSION:
            return
        spoken = self._streams.setdefault(served, Spoken())
        if way == "up":
            self._hear(spoken, data)
        else:
            self._check(served, spoken, pb.ServerMessage.FromString(data))

    def _hear(self, spoken: Spoken, data: bytes) -> None:
        try:
            message = pb.ClientMessage.FromString(data)
        except Exception:  # of a hostile client
            return
        kind = message.WhichOneof("kind")
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

    def _check(self, served: Served, spoken: Spoken, message: pb.ServerMessage) -> None:
        kind = message.WhichOneof("kind")
        if kind == "opened" and message.opened.session_id != spoken.session_id:
            self.wrong.append(f"{_short(served)} is told of another session")
        if kind == "opened" and served.call.metadata:
            held = served.server.process.holds["session records"]
            crowds = [tenant for tenant in TENANTS if held.count(tenant) > SESSIONS]
            self.wrong += [f"{tenant} has {held.count(tenant)} sessions" for tenant in crowds]
        if kind == "tokens":
            length = message.tokens.position + len(message.tokens.ids)
            if message.tokens.ids and length > spoken.acknowledged + spoken.credit:
                self.wrong.append(
                    f"{_short(served)}: {length} tokens, of which {spoken.acknowledged} are "
                    f"acknowledged, and the credit is {spoken.credit}"
                )


def _short(served: Served) -> str:
    return f"{served.call.channel.process.name}{served.call.method.rpartition('/')[1:][1]}"
