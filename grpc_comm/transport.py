"""Addresses, and the gRPC options of clients and targets."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import NamedTuple

from inference.errors import InvalidRequest
from inference.sampling import MAX_GRAMMAR

MAX_MESSAGE_BYTES = 16 * 2**20
"""Maximum size of a message. A prompt of a million tokens takes 3 to 4 MB."""

_LAST_PORT, _PORT_DIGITS = 65_535, 20  # highest port; maximum digits that are parsed

DNS = "dns:///"
"""Prefix of an endpoint whose host has a replica at each of its DNS addresses."""

_BYTES_BESIDE_PROMPT, _BYTES_PER_ID = 64 * 2**10 + MAX_GRAMMAR, 5

_BOTH_ENDS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),  # load balancers and NAT drop connections idle for 60 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SERVER_OPTIONS = (
    *_BOTH_ENDS,
    (
        "grpc.http2.min_ping_interval_without_data_ms",
        10_000,
    ),  # by the default minimum, the client's keepalive is answered with GOAWAY
    ("grpc.so_reuseport", 0),  # a second server on the port must fail
    # The following options bound the resources of an unauthenticated peer.
    # Refusing a stream with long headers costs the core 1 to 2 MB.
    ("grpc.max_concurrent_streams", 100),
    ("grpc.max_allowed_incoming_connections", 1024),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.http2.bdp_probe", 0),  # buffer 64 KB, not 4 MB, of a call whose messages are not read
)
_CHANNEL_OPTIONS = (
    *_BOTH_ENDS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    (
        "grpc.use_local_subchannel_pool",
        1,
    ),  # a separate connection, which is not delayed by another channel's back-off
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Address(NamedTuple):
    """The host and port where a target listens; port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether data sent to this address stays on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Parse HOST:PORT; IPv6 hosts have brackets. Raises InvalidRequest for anything else."""
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


class Endpoint(NamedTuple):
    """A target's host and port, or those of several replicas behind one DNS name."""

    address: Address
    resolved: bool = False  # whether each DNS address of the host is a replica

    def __str__(self) -> str:
        return f"{DNS}{self.address}" if self.resolved else str(self.address)


def parse_endpoint(text: str) -> Endpoint:
    """Parse HOST:PORT or dns:///HOST:PORT; raise InvalidRequest."""
    text = text.strip()
    return Endpoint(parse_address(text.removeprefix(DNS)), text.startswith(DNS))


def read_port(text: str) -> int:
    """Parse a port number; raise InvalidRequest unless it is 0 to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS):
        raise InvalidRequest(f"a port is a number from 0 to {_LAST_PORT}: got {text[:20]}")
    return check_port(int(text))


def check_port(port: int) -> int:
    """Return the port; raise InvalidRequest if gRPC would truncate it to 16 bits."""
    if not 0 <= port <= _LAST_PORT:
        raise InvalidRequest(f"a port is a number from 0 to {_LAST_PORT}: got {port}")
    return port


def check_free(address: Address) -> None:
    """Raise InvalidRequest if listening on the address would fail."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        socket.create_server(address, family=family).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise InvalidRequest(
            f"cannot listen on {address}: {why}; port 0 lets the system choose one"
        ) from error


def server_options(longest_prompt: int | None) -> tuple[tuple[str, int], ...]:
    """Return the gRPC options of a target.

    longest_prompt: maximum tokens of a prompt, None if unknown; longer messages are not read
    """
    size = (
        MAX_MESSAGE_BYTES
        if longest_prompt is None
        else min(MAX_MESSAGE_BYTES, _BYTES_BESIDE_PROMPT + _BYTES_PER_ID * longest_prompt)
    )
    return (*_SERVER_OPTIONS, ("grpc.max_receive_message_length", size))


def channel_options(address: Address, name: str = "") -> tuple[tuple[str, int | str], ...]:
    """Return the gRPC options of a client. Connections to this machine use no proxy.

    name: host that the target's certificate must name; empty: the host of the address
    """
    direct = (("grpc.enable_http_proxy", 0),) if address.loopback else ()
    name_options = (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
    return (*_CHANNEL_OPTIONS, *direct, *(name_options if name else ()))
