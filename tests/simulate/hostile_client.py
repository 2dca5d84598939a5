"""Hostile clients: sessions with other values in any field, in any order, and any bytes. They are
made from the protocol's own descriptors, so whatever fields it has are tried.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.translate import RULES_VERSION, read_params
from tests.simulate.network import Network
from tests.simulate.plan import ClientPlan
from tests.simulate.target_process import grammars_of
from tests.simulate.wire_client import Channel
from tests.support.exact import own_text
from tests.support.hostile import SESSION, bearer, resume
from tests.support.wire_fixtures import chain_of, decode_to, opening

ENDINGS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""Codes that a call may end with, whatever was sent."""

RIGHT = [
    decode_to(20),
    decode_to(40, pace=pb.Decode.WAIT),
    decode_to(60, credit=9, stop_ids=[33]),
    chain_of([4, 5, 6]),
    chain_of([4, 9, 5], parents=[0, 0, 2]),
    chain_of([6, 7], base=4, first=3),
    pb.ClientMessage(ack=pb.Ack(length=3)),
    pb.ClientMessage(go=pb.Go(base=2)),
    pb.ClientMessage(heartbeat=pb.Heartbeat()),
]
"""What a client may say once [1, 2, 3] is open, in any order."""

CONVERSATIONS = 6
LINGER_SECONDS = 0.05
RULE: dict[str, Any] = {
    "protocol_version": RULES_VERSION,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "bias_ids": [5, 6],
    "biases": [2.0, -100.0],
    "made": 1,
}
"""Fields of an Open that this target takes."""

BESIDE = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INTERNAL,
}
"""Codes that other things than its messages bring."""


class Hostile:
    """One such client, on its thread."""

    def __init__(
        self, plan: ClientPlan, kinds: int, network: Network, addresses: Sequence[str]
    ) -> None:
        """kinds: tokens that the target chooses among"""
        self._kinds = kinds
        self._chance = random.Random(f"{plan.number} {plan.starts} hostile")
        self._network, self._kernel, self._tenant = network, network.kernel, plan.tenant
        self._channel = Channel(network, addresses[plan.number % len(addresses)])

    def rage(self) -> None:
        """Say what it says, and end."""
        mutator = Mutator(self._chance, (16, 512, 1000))
        for _ in range(CONVERSATIONS):
            name = f"{self._chance.getrandbits(64):016x}"
            rule = RULE if self._chance.random() < 0.3 else {}
            first = opening(session_id=name, **rule)
            messages = self._theft() or mutator.session(first, RIGHT)
            begin = self._channel.stream_stream(SESSION)
            call = begin(self._said(messages), timeout=30.0, metadata=bearer(self._tenant))
            leaves, answers = self._chance.random() < 0.3, list[bytes]()
            with suppress(grpc.RpcError):
                for answer in call:
                    answers.append(answer)
                    if leaves:
                        call.cancel()
            self._check(messages[0], answers)
            if call.code() not in ENDINGS | BESIDE | {grpc.StatusCode.DEADLINE_EXCEEDED}:
                self._kernel.crashes.append(f"a hostile call ended with {call.code()}")
        self._channel.close()

    def _check(self, first: bytes, answers: Sequence[bytes]) -> None:
        """Look whether the text that came is the target's own, each token at its position, once."""
        parsed = map(pb.ServerMessage.FromString, answers)
        said = [one.tokens for one in parsed if one.HasField("tokens")]
        if not any(one.ids for one in said):
            return
        asked, made = pb.ClientMessage.FromString(first).open, list[int]()
        for one in said:
            if one.position != len(asked.prompt) + len(made):
                self._kernel.crashes.append(f"a hostile client's text goes on at {one.position}")
            made += one.ids
        grammars = grammars_of(self._kinds)
        if made != own_text(asked.prompt, len(made), read_params(asked), self._kinds, grammars):
            self._kernel.crashes.append("a hostile client's text is another")

    def _theft(self) -> list[bytes]:
        """What resumes another's session, but for its key; at times, and where there is one."""
        servers = self._network.listeners.values()
        tables = [one.process.holds.get("session records") for one in servers]
        records = [record for table in tables if table for record in table.records.values()]
        held = [one for one in records if one.tenant == self._tenant]
        if not held or self._chance.random() < 0.5:
            return []
        one = self._chance.choice(held)
        opened = pb.Opened(session_id=one.session_id, resume_key=bytes(16))
        theft = resume(opened, epoch=1 << 20, length=one.session.length)
        return [theft.SerializeToString()]

    def _said(self, messages: list[bytes]) -> Iterator[bytes]:
        yield from messages
        self._kernel.sleep(LINGER_SECONDS)


M = TypeVar("M", bound=Message)
Field = Any  # a FieldDescriptor, of which there are two that the stubs hold to be unlike
Value = bool | int | float | str | bytes

FLOATS = (0.0, -0.0, 0.7, 1.0, -1.0, 1e-45, 3.4e38, -3.4e38, math.nan, math.inf, -math.inf)
LETTERS = "aZ09-_./\\ \0\n\x1b\x7f\u00e4\u202e\u2028\ufffd\U0001f600"
LONG, LONGEST = 80, 5_000
DEEPEST = 3  # of messages within messages, when they are made afresh
NESTED = 2_000  # of those that only a parser sees


class Mutator:
    """Other messages than the right ones. near: numbers in whose neighbourhood limits may lie."""

    def __init__(self, chance: Random, near: Sequence[int] = ()) -> None:
        self._chance, self._near = chance, tuple(near) or (0,)

    def changed(self, message: M) -> M:
        """The message with other values in some of its fields, mostly in one, or in none at all."""
        other = type(message)()
        other.CopyFrom(message)
        for _ in range(self._chance.choice((0, 1, 1, 1, 1, 2, 2, 5))):
            self._change(other)
        return other

    def afresh(self, kind: type[M]) -> M:
        """A message of this kind with any values in some of its fields."""
        message = kind()
        self._fill(message, DEEPEST)
        return message

    def session(self, first: M, right: Sequence[M]) -> list[bytes]:
        """A session as it should be, with changes here and there; each message as bytes."""
        chance = self._chance
        messages = [first if chance.random() < 0.5 else self.changed(first)]
        for _ in range(chance.randrange(11)):
            how, message = chance.randrange(8), chance.choice(right)
            if how == 0:
                message = self.afresh(type(first))
            messages.append(self.changed(message) if how == 1 else message)
        sent = [message.SerializeToString() for message in messages]
        return [self.damaged(data) if chance.randrange(12) == 0 else data for data in sent]

    def damaged(self, data: bytes) -> bytes:
        """A message's bytes, cut, overwritten, doubled, or replaced by others."""
        chance, at = self._chance, self._chance.randrange(len(data) + 1)
        other = self._bytes(chance.randint(1, 3))
        unknown = _varint(8 * chance.randint(1, 2**29 - 1)) + _varint(chance.getrandbits(64))
        longer = chance.choice((data, unknown, self._bytes(self._length())))
        over = data[:at] + other + data[at + len(other) :]
        return chance.choice((data[:at], over, over, data + longer, self._strange(data)))

    def _change(self, message: Message) -> None:
        """One field, here or in a message within: another value, another list, or none."""
        chance, places = self._chance, _places(message)
        if not places:
            return
        holder, field = chance.choice(places)
        if field.is_repeated and field.message_type is None and chance.random() < 0.75:
            values = list(getattr(holder, field.name))
            at = chance.randrange(len(values) + 1)
            new = [self.value(field)] * chance.randrange(2)
            values[at : at + chance.randrange(2)] = new  # replaced, inserted or left out
            holder.ClearField(field.name)
            getattr(holder, field.name).extend(values)
            return
        holder.ClearField(field.name)
        if chance.random() < 0.8:
            self._fill_field(holder, field, DEEPEST)

    def _fill(self, message: Message, depth: int) -> None:
        message.SetInParent()
        fields: list[Field] = list(message.DESCRIPTOR.fields)
        self._chance.shuffle(fields)  # of those that exclude each other the last one stays
        for field in fields[: self._chance.randrange(len(fields) + 1)]:
            self._fill_field(message, field, depth)

    def _fill_field(self, message: Message, field: Field, depth: int) -> None:
        held = getattr(message, field.name)
        if field.message_type is not None:
            if depth:
                self._fill(held.add() if field.is_repeated else held, depth - 1)
        elif field.is_repeated:
            held.extend(self._values(field))
        else:
            setattr(message, field.name, self.value(field))

    def _values(self, field: Field) -> list[Value]:
        most = self._chance.choice((2, 2, 8, 8, 8, LONG, LONG + max(self._near) % LONGEST))
        return [self.value(field) for _ in range(self._chance.randrange(most))]

    def value(self, field: Field) -> Value:
        """Any that a field of this type can have."""
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._chance.random() < 0.5
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            return self._float()
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return (
                self._bytes(self._length())
                if field.type == FieldDescriptor.TYPE_BYTES
                else self._text()
            )
        return self._number(*_RANGES[kind])

    def _number(self, least: int, greatest: int) -> int:
        chance = self._chance
        how = chance.randrange(4)
        if how == 0:
            number = chance.randrange(9)
        elif how == 1:
            number = chance.choice(self._near) + chance.randint(-3, 5)
        elif how == 2:
            number = (1 << chance.randrange(65)) - chance.randrange(2)
        else:
            number = chance.randint(least, greatest)
        return min(max(number, least), greatest)

    def _float(self) -> float:
        if self._chance.random() < 0.5:
            return self._chance.choice(FLOATS)
        bits: float = struct.unpack("<f", self._chance.getrandbits(32).to_bytes(4, "little"))[0]
        return bits

    def _length(self) -> int:
        return self._chance.randrange(self._chance.choice((2, 9, 41, 41, LONG, LONGEST)))

    def _text(self) -> str:
        text = "".join(self._chance.choice(LETTERS) for _ in range(min(self._length(), LONG)))
        return text * (LONGEST // LONG) if self._chance.random() < 0.02 else text

    def _bytes(self, count: int) -> bytes:
        return self._chance.getrandbits(8 * count).to_bytes(count, "little") if count else b""

    def _strange(self, data: bytes) -> bytes:
        """Bytes that are well formed to a careless parser only."""
        chance, nested = self._chance, self._chance.randrange(NESTED)
        number = 8 * chance.randint(1, 31) % 256
        return chance.choice(
            (
                self._bytes(self._length()),
                bytes((number | 3,)) * nested,  # groups in groups that do not end
                bytes((number | 2,)) + _varint(2 ** chance.randrange(64)) + data,
                b"\xff" * nested,  # a number that does not end
                bytes((number | chance.randrange(8),)) + data,
            )
        )


_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


def _places(message: Message) -> list[tuple[Message, Field]]:
    """Every field of the message, set or not, and of the messages that are set within it."""
    places = [(message, field) for field in message.DESCRIPTOR.fields]
    for field, held in message.ListFields():
        if field.message_type is not None:
            for inner in held if field.is_repeated else [held]:
                places += _places(inner) * 2  # what is set says what the message is about
    return places


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*data, number))
