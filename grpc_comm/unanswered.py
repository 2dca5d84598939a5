"""Diagnoses why a target did not answer: connection refused, TLS on one side only, or an HTTP
server at the address.
"""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from grpc_comm.security import SecurityOptions
from grpc_comm.transport import Address
from inference.errors import Unavailable


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
        return "it does not use TLS: omit --tls_ca and --tls" if security.encrypted else None
    return "it uses TLS: give --tls_ca FILE, or --tls_ca system for a public certificate"


def _authority(file: Path | None) -> str:
    return f" (--tls_ca {file})" if file else "; give the --tls_ca that signed it"
