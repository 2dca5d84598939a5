"""Rules of who may listen and call where, and their proofs: certificates and bearer tokens.

Loopback is allowed in plaintext. Any other host needs TLS and, to listen, a token, unless the user
says `insecure`. A token never travels in plaintext to another machine.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio

from grpc_comm.keys import WATCH_SECONDS, Grant, Keys
from grpc_comm.permissions import read_secret
from grpc_comm.transport import Address
from inference.errors import InvalidRequest, LimitExceeded, MissingExtra

T = TypeVar("T")

_HEALTH_CHECK = "/grpc.health.v1.Health/Check"
_CANCEL_SECONDS = 0.05
_WITHDRAWN = "this key was taken out of the target's keys while the call was under way"


@dataclass(frozen=True)
class SecurityOptions:
    """Files and switches as the user gives them. Both ends have the same ones."""

    tls_cert: Path | None = None  # this side's certificate
    tls_key: Path | None = None  # its private key
    tls_ca: Path | None = None  # signs the other side; a target then demands client certificates
    token_file: Path | None = None  # one token: this client's, or that of every client
    keys_file: Path | None = None  # a target's clients, each with a token and limits of its own
    tls: bool = False  # use TLS with the system's certificate authorities
    insecure: bool = False  # the user takes the risk

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest("--tls_cert and --tls_key belong together: give both or neither")
        if self.token_file is not None and self.keys_file is not None:
            raise InvalidRequest(
                "--token_file (one token for all) and --keys_file (one for each client) exclude "
                "each other"
            )

    @property
    def encrypted(self) -> bool:
        return self.tls or self.tls_cert is not None or self.tls_ca is not None


PLAINTEXT = SecurityOptions()


class ServerSecurity(NamedTuple):
    """Secrets of a listening target. Credentials of None mean plaintext."""

    credentials: grpc.ServerCredentials | None
    keys: Keys


class ChannelSecurity(NamedTuple):
    """Secrets of a client. Credentials of None mean plaintext; metadata goes with every call."""

    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


def server_security(options: SecurityOptions, address: Address) -> ServerSecurity:
    """Return a listening target's credentials and keys.

    Raises InvalidRequest when listening there with these options would expose the target.
    """
    if options.encrypted and (options.tls_cert is None or options.tls_key is None):
        raise InvalidRequest(
            "a target with TLS needs a certificate of its own: --tls_cert and --tls_key"
        )
    secret = options.token_file or options.keys_file
    if not (address.loopback or options.insecure or (options.encrypted and secret)):
        need = (
            "--tls_cert, --tls_key and --keys_file or --token_file (or --insecure, if the "
            "network is trusted)"
        )
        raise InvalidRequest(
            f"listening on {address.host} opens the target to other machines: it needs {need}"
        )
    if secret and not options.encrypted and not address.loopback:
        raise InvalidRequest(
            f"on {address.host} tokens would travel in plaintext: it needs --tls_cert and --tls_key"
        )
    keys = read_keys(options)
    if options.tls_cert is None or options.tls_key is None:
        return ServerSecurity(None, keys)
    pair = (_read_secret(options.tls_key, "--tls_key"), _read(options.tls_cert, "--tls_cert"))
    authority = _read(options.tls_ca, "--tls_ca") if options.tls_ca else None
    return ServerSecurity(
        grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None),
        keys,
    )


def read_keys(options: SecurityOptions) -> Keys:
    """Return the keys that a target knows; raise InvalidRequest for a file that cannot be used."""
    if options.keys_file is not None:
        return Keys.read(options.keys_file)
    return (
        Keys.open() if options.token_file is None else Keys.single(read_token(options.token_file))
    )


def channel_security(options: SecurityOptions, address: Address) -> ChannelSecurity:
    """Return a client's credentials and metadata.

    Raises InvalidRequest when a token would travel in plaintext to another machine. A prompt may do
    so with `insecure` only.
    """
    if options.keys_file:
        raise InvalidRequest(
            "--keys_file is the target's; a client has one token, in a --token_file"
        )
    if options.token_file and not (options.encrypted or address.loopback):
        raise InvalidRequest(
            f"the token would travel in plaintext to {address.host}: it needs TLS (--tls_ca, or "
            "--tls for a public certificate)"
        )
    if not (options.encrypted or options.insecure or address.loopback):
        raise InvalidRequest(
            f"prompts would travel in plaintext to {address.host}: give --tls_ca or --tls (or "
            "--insecure, if the network is trusted)"
        )
    metadata = (
        (("authorization", f"Bearer {read_token(options.token_file)}"),)
        if options.token_file
        else ()
    )
    return ChannelSecurity(_channel_credentials(options) if options.encrypted else None, metadata)


def _channel_credentials(options: SecurityOptions) -> grpc.ChannelCredentials:
    authority = _read(options.tls_ca, "--tls_ca") if options.tls_ca else None
    key = _read_secret(options.tls_key, "--tls_key") if options.tls_key else None
    certificate = _read(options.tls_cert, "--tls_cert") if options.tls_cert else None
    return grpc.ssl_channel_credentials(authority, key, certificate)


def read_token(path: Path) -> str:
    """Return the first line of the file, stripped.

    Raises InvalidRequest when it is empty, cannot be sent, or others may read the file.
    """
    lines = _read_secret(path, "--token_file").splitlines()
    token = lines[0].strip() if lines else b""
    if not token:
        raise InvalidRequest(
            f"--token_file {path}: its first line is empty, a token is needed there"
        )
    if not all(0x20 < byte < 0x7F for byte in token):
        raise InvalidRequest(
            f"--token_file {path}: a token consists of visible ASCII characters without spaces"
        )
    return token.decode("ascii")


def _read(path: Path, flag: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: cannot be read ({error.strerror})") from error


def _read_secret(path: Path, flag: str) -> bytes:
    try:
        return read_secret(path)
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: cannot be read ({error.strerror})") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{flag} {error}") from error


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Admits calls whose token belongs to a key, for as long as it does, whatever the method.

    Other calls end with UNAUTHENTICATED, and no message of them is read. So does a stream whose key
    is taken away. Health.Check alone is answered to anyone, about the whole target. Messages longer
    than their sender's key allows are not parsed.
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        grant = self._keys.grant(handler_call_details.invocation_metadata)
        if grant is None and handler_call_details.method != _HEALTH_CHECK:
            return grpc.stream_stream_rpc_method_handler(_refuse)
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method
            return None
        if grant is None:
            return _unread(handler)
        return _while_granted(_limited(handler, grant), grant)


async def _refuse(_messages: Any, context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong (--token_file)"
    )


def _unread(handler: Any) -> Any:
    """Return a unary handler that answers as to an empty request.

    The real request is not read, so it takes no memory here however long it is.
    """

    async def answer(_messages: Any, context: Any) -> None:
        await context.write(await handler.unary_unary(handler.request_deserializer(b""), context))

    return grpc.stream_stream_rpc_method_handler(answer, None, handler.response_serializer)


def _limited(handler: Any, grant: Grant) -> Any:
    """Return the handler with a limit: too long a message raises LimitExceeded before it is
    parsed.
    """
    parse = handler.request_deserializer

    def parse_short(message: bytes) -> Any:
        most = grant.key.message_bytes
        if most is not None and len(message) > most:
            got = f"a message of {len(message)} bytes"
            raise LimitExceeded(f"{got}: this key may send {most} at once")
        return parse(message)

    return handler._replace(request_deserializer=parse_short)


def _while_granted(handler: Any, grant: Grant) -> Any:
    """Return the handler, with response streams that end when their key is taken away."""
    if not handler.response_streaming:
        return handler
    shape = "stream_stream" if handler.request_streaming else "unary_stream"
    method = getattr(handler, shape)

    async def write(request: Any, context: Any) -> Any:
        return await _granted(method(request, context), grant, context)

    async def generate(request: Any, context: Any) -> AsyncIterator[Any]:
        async with aclosing(method(request, context)) as messages:
            while True:
                message = await _granted(anext(messages, None), grant, context)
                if message is None:
                    return
                yield message

    return handler._replace(**{shape: generate if inspect.isasyncgenfunction(method) else write})


async def _granted(work: Awaitable[T], grant: Grant, context: Any) -> T:
    """Return the result of the work, if the grant lasts so long; else end the call."""
    task = asyncio.ensure_future(work)
    try:
        while not (task.done() or grant.withdrawn):
            await asyncio.wait({task}, timeout=WATCH_SECONDS)
    finally:  # also when the call breaks
        while not task.done():
            task.cancel()  # again and again: asyncio.wait_for() may swallow a cancellation
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not warn where nobody is left
    if task.cancelled() and grant.withdrawn:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, _WITHDRAWN)
    return task.result()


class CertificateFiles(NamedTuple):
    """The files of a certificate. Clients need `ca`; the target needs `certificate` and `key`."""

    ca: Path
    certificate: Path
    key: Path


def make_certificate(directory: Path, hosts: Sequence[str]) -> CertificateFiles:
    """Write ca.pem, cert.pem and key.pem for these host names and addresses.

    Raises InvalidRequest rather than overwrite a file, and MissingExtra without `cryptography`.
    """
    try:
        from grpc_comm.certificate import issue
    except ImportError as error:
        raise MissingExtra(
            "making a certificate needs the cryptography package: pip install 'outrider[tls]'"
        ) from error
    if not hosts:
        raise InvalidRequest(
            "a certificate needs at least one host name or address that clients connect to"
        )
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
    """Create the file with this mode, so that a key is never readable by others, even for a
    moment.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
