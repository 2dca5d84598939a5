"""Messages that no honest client sends, made from the protocol's own descriptors.

Whatever fields it has are tried. Chance is a random.Random, or what Hypothesis offers in its place,
which can then make a failing example smaller.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

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
