"""Honest conversations with a target, written down as bytes, for a campaign to play again.

Whatever the protocol is, its own client speaks it here; nothing in this file knows a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

_WORKERS = 8


@dataclass
class Conversation:
    """One call: its method's full name, and what its client sent."""

    method: str
    messages: list[bytes] = field(default_factory=list)


@contextmanager
def recording(address: str) -> Iterator[tuple[str, list[Conversation]]]:
    """HOST:PORT of a relay to the target, and the calls that come through it."""
    heard: list[Conversation] = []
    with grpc.insecure_channel(address) as channel:
        server = grpc.server(ThreadPoolExecutor(_WORKERS))
        server.add_generic_rpc_handlers((_Relay(channel, heard),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}", heard
        finally:
            server.stop(None).wait()


class _Relay(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Passes every method on, unread."""

    def __init__(self, channel: grpc.Channel, heard: list[Conversation]) -> None:
        self._channel, self._heard = channel, heard

    def service(self, details: Any) -> Any:
        conversation = Conversation(details.method)
        self._heard.append(conversation)

        def kept(requests: Iterator[bytes]) -> Iterator[bytes]:
            with suppress(grpc.RpcError):  # a client that breaks off has no more to say
                for request in requests:
                    conversation.messages.append(request)
                    yield request

        def relay(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            call = self._channel.stream_stream(details.method, None, None)  # bytes as they are
            answers = call(kept(requests))
            try:
                yield from answers
            except grpc.RpcError:
                context.abort(answers.code(), answers.details())

        return grpc.stream_stream_rpc_method_handler(relay)
