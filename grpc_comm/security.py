"""Who may listen where, who may call, and the files that prove it: TLS certificates and a bearer token.

Loopback is allowed in plaintext. Any other host needs TLS and, to listen, a token, unless the user says `insecure`.
A token never travels in plaintext to another machine.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from grpc_comm.transport import Address
from inference.errors import InvalidRequest, MissingExtra

_HEALTH = "/grpc.health.v1.Health/"


@dataclass(frozen=True)
class SecurityOptions:
    """Files and switches as the user gives them; both sides have the same.

    tls_cert, tls_key: this side's certificate.  tls_ca: who must have signed the other side's (a target given one demands
    certificates of its clients).  tls: use TLS with the system's certificate authorities.  insecure: the user takes the risk.
    """

    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    token_file: Path | None = None
    tls: bool = False
    insecure: bool = False

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("--tls_cert and --tls_key belong together: give both or neither")

    @property
    def encrypted(self) -> bool:
        return self.tls or self.tls_cert is not None or self.tls_ca is not None


PLAINTEXT = SecurityOptions()


class ServerSecurity(NamedTuple):
    """What a listening target uses; None: plaintext, nobody is asked for a token."""

    credentials: grpc.ServerCredentials | None
    token: str | None


class ChannelSecurity(NamedTuple):
    """What a client uses: credentials (None: plaintext) and the metadata of every call."""

    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


def server_security(options: SecurityOptions, address: Address) -> ServerSecurity:
    """Raises InvalidRequest when listening there with these options would expose the target."""
    if options.encrypted and (options.tls_cert is None or options.tls_key is None):
        raise InvalidRequest("a target with TLS needs a certificate of its own: --tls_cert and --tls_key")
    if not (address.loopback or options.insecure or (options.encrypted and options.token_file)):
        need = "--tls_cert, --tls_key and --token_file (or --insecure, if the network is trusted)"
        raise InvalidRequest(f"listening on {address.host} opens the target to other machines: it needs {need}")
    if options.token_file and not options.encrypted and not address.loopback:
        raise InvalidRequest(f"on {address.host} the token would travel in plaintext: it needs --tls_cert and --tls_key")
    token = None if options.token_file is None else read_token(options.token_file)
    if options.tls_cert is None or options.tls_key is None:
        return ServerSecurity(None, token)
    pair = (_read(options.tls_key, "--tls_key"), _read(options.tls_cert, "--tls_cert"))
    authority = _read(options.tls_ca, "--tls_ca") if options.tls_ca else None
    return ServerSecurity(grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None), token)


def channel_security(options: SecurityOptions, address: Address) -> ChannelSecurity:
    """Raises InvalidRequest when a token or, without `insecure`, a prompt would travel in plaintext to another machine."""
    if options.token_file and not (options.encrypted or address.loopback):
        raise InvalidRequest(f"the token would travel in plaintext to {address.host}: it needs TLS (--tls_ca, or --tls for a public certificate)")
    if not (options.encrypted or options.insecure or address.loopback):
        raise InvalidRequest(
            f"prompts would travel in plaintext to {address.host}: give --tls_ca or --tls (or --insecure, if the network is trusted)"
        )
    metadata = (("authorization", f"Bearer {read_token(options.token_file)}"),) if options.token_file else ()
    return ChannelSecurity(_channel_credentials(options) if options.encrypted else None, metadata)


def _channel_credentials(options: SecurityOptions) -> grpc.ChannelCredentials:
    authority = _read(options.tls_ca, "--tls_ca") if options.tls_ca else None
    key = _read(options.tls_key, "--tls_key") if options.tls_key else None
    certificate = _read(options.tls_cert, "--tls_cert") if options.tls_cert else None
    return grpc.ssl_channel_credentials(authority, key, certificate)


def read_token(path: Path) -> str:
    """The first line of the file, stripped; raises InvalidRequest when there is none or it cannot be sent."""
    lines = _read(path, "--token_file").splitlines()
    token = lines[0].strip() if lines else b""
    if not token:
        raise InvalidRequest(f"--token_file {path}: its first line is empty, a token is needed there")
    if not all(0x20 < byte < 0x7F for byte in token):
        raise InvalidRequest(f"--token_file {path}: a token consists of visible ASCII characters without spaces")
    return token.decode("ascii")


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: cannot be read ({error.strerror})") from error


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Answers UNAUTHENTICATED unless a call carries the bearer token; health checks are free."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode("ascii")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_HEALTH) or self._admits(handler_call_details):
            return handler
        return _refusing(handler)

    def _admits(self, details: grpc.HandlerCallDetails) -> bool:
        given = dict(details.invocation_metadata).get("authorization", "")
        return hmac.compare_digest(given.encode() if isinstance(given, str) else given, self._expected)


def _refusing(handler: Any) -> Any:
    """A handler of the same shape that refuses."""
    if handler.response_streaming:
        return grpc.stream_stream_rpc_method_handler(_refuse)
    return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(_request: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong (--token_file)")


class CertificateFiles(NamedTuple):
    """Clients need `ca`; the target needs `certificate` and `key`."""

    ca: Path
    certificate: Path
    key: Path


def make_certificate(directory: Path, hosts: Sequence[str]) -> CertificateFiles:
    """Write ca.pem, cert.pem and key.pem for these host names and addresses; raises InvalidRequest rather than overwrite."""
    try:
        from grpc_comm.certificate import issue
    except ImportError as error:
        raise MissingExtra("making a certificate needs the cryptography package: pip install 'outrider[tls]'") from error
    if not hosts:
        raise InvalidRequest("a certificate needs at least one host name or address that clients connect to")
    files = CertificateFiles(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    for path in files:
        if path.exists():
            raise InvalidRequest(f"{path} exists already: remove it, or choose another directory")
    issued = issue(hosts)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, content, mode in zip(files, issued, (0o644, 0o644, 0o600), strict=True):
            _write(path, content, mode)
    except OSError as error:
        raise InvalidRequest(f"{directory}: cannot be written ({error.strerror})") from error
    return files


def _write(path: Path, content: bytes, mode: int) -> None:
    """Created with this mode, so that a key is never readable by others, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
