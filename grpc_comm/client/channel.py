"""The client's channel to a target, and why a target does not answer: connection refused, TLS on
one side only, or an HTTP server at the address.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_comm import statuses, translate
from grpc_comm.proto import verifier_pb2 as pb
from grpc_comm.proto import verifier_pb2_grpc
from grpc_comm.security import SecurityOptions, channel_security
from grpc_comm.translate import Description
from grpc_comm.transport import Address, channel_options
from inference.errors import OutriderError, Unavailable


class WrongSecurity(Unavailable):
    """Error of a target that runs but refuses the client's TLS settings: retrying does not help."""


_SECONDS = 1.0
_HTTP = (
    "that is an HTTP server, perhaps `outrider serve`; a target listens on port 50051 by default"
)
_REFUSED = {
    True: "it requires a client certificate: give --tls_cert and --tls_key",
    False: "it refuses the certificate in --tls_cert",
}


def refuses(address: Address) -> bool:
    """Return whether `address` is on this machine and refuses connections. Another host may still
    be starting.
    """
    if not address.loopback:
        return False
    try:
        socket.create_connection(address, _SECONDS).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def advice(address: Address, security: SecurityOptions) -> str | None:
    """Return advice about a target that did not answer at `address`; None without a diagnosis.

    Connects again, and sends only a TLS ClientHello or the head of an HTTP request.
    """
    try:
        with socket.create_connection(address, _SECONDS) as connection:
            reason = _of_greeting(connection, address, security)
        return reason or (None if security.encrypted else _of_http(address))
    except OSError:
        return None


def _of_http(address: Address) -> str | None:
    """Return advice if an HTTP server answers. gRPC servers answer in binary frames, if at all."""
    with socket.create_connection(address, _SECONDS) as connection:
        connection.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return _HTTP if connection.recv(5) == b"HTTP/" else None


def _of_greeting(
    connection: socket.socket, address: Address, security: SecurityOptions
) -> str | None:
    context = ssl.create_default_context(cafile=security.tls_ca)
    if not security.encrypted:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if security.tls_cert is not None and security.tls_key is not None:
        context.load_cert_chain(security.tls_cert, security.tls_key)
    context.set_alpn_protocols(["h2"])
    try:
        with context.wrap_socket(connection, server_hostname=address.host) as secured:
            if secured.selected_alpn_protocol() != "h2":
                return _HTTP
            if security.encrypted:  # TLS 1.3 refuses a client only after the greeting
                return None if secured.recv(1) else _REFUSED[security.tls_cert is None]
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused: {error.verify_message}{_authority(security.tls_ca)}"
    except ssl.SSLError:
        return "it does not use TLS: omit --tls_ca" if security.encrypted else None
    return "it uses TLS: give --tls_ca FILE, or --tls_ca system for a public certificate"


def _authority(file: Path | None) -> str:
    return f" (--tls_ca {file})" if file else "; give the --tls_ca that signed it"


REACH_POLL_SECONDS = 0.02


class Channel:
    """A gRPC channel to one target. Closed channels raise Unavailable.

    name: host that the target's certificate must name; empty: the host of the address
    """

    def __init__(self, address: Address, security: SecurityOptions, name: str = "") -> None:
        self.address, self._security = address, security
        credentials, self._metadata = channel_security(security, address)
        options = channel_options(address, name)
        if credentials is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._stub = verifier_pb2_grpc.TargetStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def describe(self, model: str, timeout: float) -> Description:
        return translate.read_description(self._ask(timeout, model))

    def tokenizer_settings(self, model: str, timeout: float) -> bytes:
        """Fetch a model's tokenizer settings, unchecked."""
        return self._ask(timeout, model, tokenizer_settings=True).tokenizer_settings

    def list_models(self, timeout: float) -> list[str]:
        return [translate.plain(name) for name in self._ask(timeout).models]

    def probe(self, timeout: float) -> float:
        """Return the seconds of a round trip for which the target does no work."""
        start = time.perf_counter()
        self._ask(timeout)
        return time.perf_counter() - start

    def _ask(
        self, timeout: float, model: str = "", *, tokenizer_settings: bool = False
    ) -> pb.Description:
        request = pb.DescribeRequest(model=model, tokenizer_settings=tokenizer_settings)
        try:
            with self._open():
                message: pb.Description = self._stub.Describe(
                    request, timeout=timeout, metadata=self._metadata
                )
        except grpc.RpcError as error:
            problem = f"{model} is not available" if model else "no Outrider target answers"
            raise self._failure(error, f"{problem} at {self.address}") from error
        return message

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Raise Unavailable if the channel is closed, which gRPC reports as a ValueError."""
        try:
            yield
        except ValueError as error:
            raise Unavailable(f"the connection to {self.address} is closed") from error

    def _failure(self, error: grpc.RpcError, meaning: str) -> OutriderError:
        """Return Outrider's exception for a failed RPC, with a remedy if one is known."""
        failure = statuses.status_error(error, meaning)
        if not isinstance(failure, Unavailable):
            return failure
        remedy = advice(self.address, self._security)
        return WrongSecurity(f"{meaning}: {remedy}") if remedy else failure

    def check_health(self, timeout: float) -> None:
        """Raise Unavailable unless the target reports within `timeout` seconds that it is serving.

        An ingress without a health service is assumed to be serving.
        """
        try:
            with self._open():
                answer = self._health.Check(
                    health_pb2.HealthCheckRequest(), timeout=timeout, metadata=self._metadata
                )
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return
            raise statuses.status_error(error, f"no answer from {self.address}") from error
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Unavailable(f"the target at {self.address} accepts no sessions at present")

    def reach(self, model: str, seconds: float, given_up: threading.Event) -> Description:
        """Wait up to `seconds` for the channel to connect; return the target's description. Raises
        Unavailable.

        The RPC uses wait_for_ready: other RPCs fail with gRPC's last connection error while the
        channel reconnects.
        """
        request = pb.DescribeRequest(model=model)
        with self._open():
            call = self._stub.Describe.future(
                request, timeout=seconds, metadata=self._metadata, wait_for_ready=True
            )
        while not call.done():
            if given_up.wait(REACH_POLL_SECONDS):
                call.cancel()
        if call.code() is not grpc.StatusCode.OK:
            raise statuses.status_error(call, f"no Outrider target answers at {self.address}")
        return translate.read_description(call.result())

    def session(self, messages: Iterator[pb.ClientMessage]) -> Any:
        with self._open():
            return self._stub.Session(messages, metadata=self._metadata)

    def close(self) -> None:
        self._channel.close()
