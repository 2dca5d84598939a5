"""A client's security: which connections are allowed, and their certificates and bearer tokens,
from files that others may not write. See grpc_comm/server/guard.py for the target's.

Plaintext is allowed on loopback. Connecting to another host needs TLS; listening for other hosts
needs TLS and a token. `insecure` lifts both. No token is sent to another machine in plaintext.
"""

from __future__ import annotations

import os
import shlex
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import grpc

from grpc_comm.transport import Address
from inference.errors import InvalidRequest


@dataclass(frozen=True)
class SecurityOptions:
    """Files and switches set by the user. Clients and targets have the same options."""

    tls_cert: Path | None = None  # this side's certificate
    tls_key: Path | None = None  # private key of the certificate
    tls_ca: Path | None = None  # authority of the other side; a target then demands certificates
    token_file: Path | None = None  # a client's token, or the token that all clients share
    keys_file: Path | None = None  # a target's clients, each with its own token and limits
    tls: bool = False  # use TLS with the system's certificate authorities
    insecure: bool = False  # allow plaintext and clients without a token

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


class ChannelSecurity(NamedTuple):
    """A client's secrets. Credentials None mean plaintext; metadata is sent with every call."""

    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


def channel_security(options: SecurityOptions, address: Address) -> ChannelSecurity:
    """Return a client's credentials and metadata.

    Raises InvalidRequest if a token would be sent to another machine in plaintext, or a prompt
    would without `insecure`.
    """
    if options.keys_file:
        raise InvalidRequest(
            "--keys_file is for targets; a client has one token, in a --token_file"
        )
    if options.token_file and not (options.encrypted or address.loopback):
        raise InvalidRequest(
            f"the token would be sent in plaintext to {address.host}: it needs TLS (--tls_ca FILE, "
            "or --tls_ca system for a public certificate)"
        )
    if not (options.encrypted or options.insecure or address.loopback):
        raise InvalidRequest(
            f"prompts would be sent in plaintext to {address.host}: give --tls_ca (or "
            "--insecure, if the network is trusted)"
        )
    credentials = grpc.ssl_channel_credentials(*read_tls(options)) if options.encrypted else None
    metadata = (
        (("authorization", f"Bearer {read_token(options.token_file)}"),)
        if options.token_file
        else ()
    )
    return ChannelSecurity(credentials, metadata)


def read_token(path: Path) -> str:
    """Return the token in the first line of the file, stripped.

    Raises InvalidRequest if it is empty or cannot be sent, or if other users may read the file.
    """
    lines = read_secret(path, "--token_file").splitlines()
    token = lines[0].strip() if lines else b""
    if not token:
        raise InvalidRequest(f"--token_file {path}: its first line is empty; it must be the token")
    if not all(0x20 < byte < 0x7F for byte in token):
        raise InvalidRequest(
            f"--token_file {path}: a token consists of visible ASCII characters without spaces"
        )
    return token.decode("ascii")


class _Encrypted(Exception):
    """Raised if a private key needs a passphrase."""


class TlsFiles(NamedTuple):
    """Contents of the PEM files; None for a file that was not given."""

    authority: bytes | None
    key: bytes | None
    certificate: bytes | None


def read_tls(options: SecurityOptions) -> TlsFiles:
    """Read the TLS files. Raises InvalidRequest for the first invalid file, since gRPC would not
    report the reason.
    """
    authority = certificate = key = None
    if options.tls_ca is not None:
        authority = _read_certificates(options.tls_ca, "--tls_ca")
    if options.tls_cert is not None and options.tls_key is not None:
        certificate = _read_certificates(options.tls_cert, "--tls_cert")
        _check_key(options.tls_key, options.tls_cert)
        key = read_secret(options.tls_key, "--tls_key")
    return TlsFiles(authority, key, certificate)


def _read_certificates(path: Path, flag: str) -> bytes:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
        return path.read_bytes()
    except OSError as error:
        raise _refusal(f"{flag} {path}", "a certificate", error) from error


def _check_key(key: Path, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # the other side decides which keys are too weak
    try:
        context.load_cert_chain(certificate, key, _refuse_passphrase)
    except _Encrypted as error:
        need = "this private key is encrypted; one without a passphrase is needed"
        raise InvalidRequest(f"--tls_key {key}: {need}") from error
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            need = f"this must be the private key of the certificate in {certificate}"
            raise InvalidRequest(f"--tls_key {key}: {need}, but the two do not match") from error
        raise _refusal(f"--tls_key {key}", "a private key", error) from error


def _refuse_passphrase() -> str:
    raise _Encrypted


def _refusal(file: str, needed: str, error: OSError) -> InvalidRequest:
    if not isinstance(error, ssl.SSLError):
        return InvalidRequest(f"{file}: cannot be read ({error.strerror})")
    return InvalidRequest(f"{file}: {needed} in PEM form is needed, but the file has none")


_GROUP_OR_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IROTH


def read_guarded(path: Path) -> bytes:
    """Read a file that only its owner may write.

    Raises InvalidRequest if other users may write it, OSError if it cannot be read.
    """
    content, mode = _content_and_mode(path)
    if mode & _GROUP_OR_OTHERS_WRITE:
        remedy = f"and so let anyone in: chmod go-w {shlex.quote(str(path))}"
        raise InvalidRequest(f"{path}: others may write it (mode {mode:04o}), {remedy}")
    return content


def read_secret(path: Path, flag: str) -> bytes:
    """Read the file of a flag, which only its owner may write, and only its owner and group read.

    The group may read it because container platforms mount secrets that way for processes without
    root. Raises InvalidRequest for any further access, and if the file cannot be read.
    """
    try:
        content, mode = _content_and_mode(path)
    except OSError as error:
        raise InvalidRequest(f"{flag} {path}: cannot be read ({error.strerror})") from error
    if mode & (_GROUP_OR_OTHERS_WRITE | _OTHERS_READ):
        remedy = f"chmod 600 {shlex.quote(str(path))} (a container's mounted secret: mode 0440)"
        reason = f"others may read or write it (mode {mode:04o})"
        raise InvalidRequest(f"{flag} {path}: {reason}: {remedy}")
    return content


def _content_and_mode(path: Path) -> tuple[bytes, int]:
    """Return content and mode of a file, both from the same descriptor, so that they match.

    The mode is 0 on systems without POSIX permissions.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        guarded = os.name == "posix" and stat.S_ISREG(status.st_mode)
        return file.read(), stat.S_IMODE(status.st_mode) if guarded else 0
