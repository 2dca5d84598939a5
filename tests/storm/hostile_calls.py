"""Hostile calls to a target by the hundred thousand: honest conversations with changes."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import NamedTuple

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.storm.recorder import Conversation
from tests.support.mutator import Mutator

CALL_SECONDS = 60.0
"""After which a call counts as hanging."""

REFUSALS = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,  # by this client
    }
)
"""Codes that a call may end with, whatever was sent."""

_ID = re.compile("[0-9a-f]{16,}")
DEEP = 0.35  # calls that are right for a while: they cost the target forwards
LEAVES = 0.01
LINGER_SECONDS = 0.02  # before a client has no more to say, which ends its session
MOST_PROBLEMS = 1_000
PROGRESS_SECONDS = 5.0
_OWN = (("grpc.use_local_subchannel_pool", 1),)  # each client has a connection of its own


class Call(NamedTuple):
    """Messages of a hostile client. leaves: it goes away before it has heard the answers."""

    method: str
    messages: list[bytes]
    leaves: bool


class Author:
    """Makes up calls from honest conversations."""

    def __init__(
        self,
        heard: Sequence[Conversation],
        service: ServiceDescriptor,
        near: Sequence[int],
        seed: int,
    ) -> None:
        self._chance = random.Random(seed)
        self._mutator = Mutator(self._chance, near)
        self._heard = [one for one in heard if one.method in _methods(service)]
        methods = _methods(service)
        self._kinds = {name: GetMessageClass(methods[name].input_type) for name in methods}
        self._all = [message for one in self._heard for message in one.messages]
        said = Counter(word for one in self._heard for word in self._words(one))
        self._ids = {word for word, conversations in said.items() if conversations == 1}
        silent = set(self._kinds) - {one.method for one in self._heard}
        if silent:
            raise ValueError(f"no honest conversation was heard of {', '.join(sorted(silent))}")

    def call(self) -> Call:
        """Mostly a conversation that is right up to some message."""
        chance = self._chance
        heard = chance.choice(self._heard)
        kind, ids = self._kinds[heard.method], dict[str, str]()
        messages = [self.renamed(kind.FromString(data), ids) for data in heard.messages]
        wrong = chance.randrange(len(messages) + 1) if chance.random() < DEEP else 0
        said = [message.SerializeToString() for message in messages]
        if wrong < len(messages):
            said[wrong] = self._wrong(messages[wrong])
        how = chance.randrange(12)
        if how == 0:
            said.insert(wrong, chance.choice(self._all))
        elif how == 1:
            chance.shuffle(said)
        elif how == 2:
            del said[wrong:]
        elif how == 3:
            said[wrong:] = [self._mutator.damaged(data) for data in said[wrong:]]
        method = chance.choice(list(self._kinds)) if how == 4 else heard.method
        return Call(method, said or [b""], chance.random() < LEAVES)

    def _wrong(self, message: Message) -> bytes:
        how = self._chance.randrange(4)
        if how == 0:
            return self._mutator.afresh(type(message)).SerializeToString()
        if how == 1:
            return self._mutator.damaged(message.SerializeToString())
        return self._mutator.changed(message).SerializeToString()

    def _words(self, conversation: Conversation) -> set[str]:
        """Words that look like an id: those that are of one conversation only are its own."""
        kind = self._kinds[conversation.method]
        messages = [kind.FromString(data) for data in conversation.messages]
        return {word for message in messages for _, _, word in _ids(message)}

    def renamed(self, message: Message, ids: dict[str, str]) -> Message:
        """With other ids for those that a client may use once, the same for the same."""
        for holder, name, word in _ids(message):
            if word in self._ids:
                other = f"{self._chance.getrandbits(4 * len(word)):0{len(word)}x}"
                setattr(holder, name, ids.setdefault(word, other))
        return message


def _ids(message: Message) -> list[tuple[Message, str, str]]:
    """Fields that may hold an id: the message that has it, the field's name, the id."""
    found = []
    for field, held in message.ListFields():
        if field.message_type is not None and not field.is_repeated:
            found += _ids(held)
        elif isinstance(held, str) and _ID.fullmatch(held):
            found.append((message, field.name, held))
    return found


def _methods(service: ServiceDescriptor) -> dict[str, MethodDescriptor]:
    return {f"/{service.full_name}/{method.name}": method for method in service.methods}


class Outcome:
    """Outcome of the calls so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages, self.calls = 0, 0
        self.codes: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()

    @property
    def hopeless(self) -> bool:
        """The target seems to be no more."""
        return sum(self.problems.values()) >= MOST_PROBLEMS

    def ended(self, call: Call, sent: int, code: grpc.StatusCode, details: str) -> None:
        """sent: how many of its messages."""
        with self._lock:
            self.messages, self.calls = self.messages + sent, self.calls + 1
            self.codes[code.name] += 1
            if code not in REFUSALS:
                self.problems[f"{call.method} ended with {code.name}: {details[:200]}"] += 1


def wage(
    address: str,
    author: Author,
    messages: int,
    at_once: int,
    progress: Callable[[Outcome], None],
) -> Outcome:
    """Calls until so many messages are sent. progress: told of the outcome every few seconds."""
    outcome = Outcome()
    writing = threading.Lock()

    def client() -> None:
        with grpc.insecure_channel(address, _OWN) as channel:
            while outcome.messages < messages and not outcome.hopeless:
                with writing:
                    call = author.call()
                _make(channel, call, outcome)

    with ThreadPoolExecutor(at_once) as pool:
        clients = [pool.submit(client) for _ in range(at_once)]
        while wait(clients, timeout=PROGRESS_SECONDS).not_done:
            progress(outcome)
    for one in clients:
        one.result()
    return outcome


def _make(channel: grpc.Channel, call: Call, outcome: Outcome) -> None:
    taken = 0

    def said() -> Iterator[bytes]:
        nonlocal taken
        for message in call.messages:
            taken += 1
            yield message
        time.sleep(LINGER_SECONDS)

    made = channel.stream_stream(call.method, None, None)(said(), timeout=CALL_SECONDS)  # bytes
    with suppress(grpc.RpcError):
        for _ in made:
            if call.leaves:
                made.cancel()  # type: ignore[no-untyped-call]
                break
    outcome.ended(call, taken, made.code(), made.details() or "")
