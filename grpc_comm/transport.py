"""Addresses and the gRPC options of both ends. Knows nothing of models, sessions or secrets."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from inference.errors import InvalidRequest

MAX_MESSAGE_BYTES = 16 * 2**20
"""A prompt of a million tokens takes 3 to 4 MB."""

_LAST_PORT, _PORT_DIGITS = 65_535, 20  # of digits no more are read

_BYTES_BESIDE_PROMPT, _BYTES_PER_ID = 64 * 2**10, 5

_BOTH_ENDS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # load balancers and NAT drop what is idle for 60 s or more
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_BOTH_ENDS,
    (
        "grpc.http2.min_ping_interval_without_data_ms",
        10_000,
    ),  # else the client's keepalive is answered with GOAWAY
    ("grpc.so_reuseport", 0),  # a second server on the port fails loudly
    # What follows bounds what a peer can hold without being known.
    ("grpc.max_concurrent_streams", 100),  # the core takes 1 to 2 MB to refuse one of long headers
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.http2.bdp_probe", 0),  # of a call that is not read 64 KB are taken, not 4 MB
)
_CHANNEL_OPTIONS = (
    *_BOTH_ENDS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    (
        "grpc.use_local_subchannel_pool",
        1,
    ),  # a connection of its own, without another channel's backoff
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Address(NamedTuple):
    """Where a target listens; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """What is sent there does not leave the machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """HOST:PORT, with an IPv6 host in brackets."""
    host, separator, port = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if (
        not (separator and host and port.isascii() and port.isdigit())
        or (":" in host and not bracketed)
        or "/" in host
    ):
        raise InvalidRequest(
            f"an address is HOST:PORT, for example 127.0.0.1:50051 or [::1]:50051: got {text!r}"
        )
    return Address(host, read_port(port))


def read_port(text: str) -> int:
    """A port number from text. Raises InvalidRequest for anything but 0 to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS):
        raise InvalidRequest(f"a port is a number from 0 to {_LAST_PORT}: got {text[:20]}")
    return check_port(int(text))


def check_port(port: int) -> int:
    """The port; raises InvalidRequest where gRPC would take its lowest 16 bits."""
    if not 0 <= port <= _LAST_PORT:
        raise InvalidRequest(f"a port is a number from 0 to {_LAST_PORT}: got {port}")
    return port


def server_options(longest_prompt: int | None) -> tuple[tuple[str, int], ...]:
    """The target's options; a message longer than the longest prompt is not read. None: that is
    not known.
    """
    most = (
        MAX_MESSAGE_BYTES
        if longest_prompt is None
        else min(MAX_MESSAGE_BYTES, _BYTES_BESIDE_PROMPT + _BYTES_PER_ID * longest_prompt)
    )
    return (*_SERVER_OPTIONS, ("grpc.max_receive_message_length", most))


def channel_options(address: Address) -> tuple[tuple[str, int], ...]:
    """The client's options; a proxy named in the environment is not asked for this machine
    itself.
    """
    return (
        (*_CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0)) if address.loopback else _CHANNEL_OPTIONS
    )
