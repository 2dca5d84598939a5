"""Creates a certificate and its authority for a target without a public name, and reads the hosts
of a certificate. Only this module uses `cryptography`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from inference.errors import InvalidRequest

DAYS = 825
_PEM = serialization.Encoding.PEM
_CERTIFICATES_ONLY = x509.KeyUsage(
    key_cert_sign=True,
    crl_sign=True,
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


class Issued(NamedTuple):
    """Contents of the PEM files of a new certificate."""

    ca: bytes  # certificate of the authority, which clients trust
    certificate: bytes  # the target's certificate
    key: bytes  # the target's private key


def issue(hosts: Sequence[str]) -> Issued:
    """Issue a certificate for host names and addresses; raise InvalidRequest for an invalid one.

    The authority's private key is discarded, so the authority cannot sign anything else.
    """
    names = x509.SubjectAlternativeName([_alternative_name(host) for host in hosts])
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _signed(
        ca_key,
        _builder(_name("Outrider authority"), ca_key),
        x509.BasicConstraints(ca=True, path_length=0),
        _CERTIFICATES_ONLY,
        x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()),
    )
    certificate = _signed(
        ca_key,
        _builder(_name("Outrider target"), key),
        x509.BasicConstraints(ca=False, path_length=None),
        names,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
    )
    secret = key.private_bytes(
        _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Issued(authority.public_bytes(_PEM), certificate.public_bytes(_PEM), secret)


def _signed(
    key: ec.EllipticCurvePrivateKey,
    builder: x509.CertificateBuilder,
    *extensions: x509.ExtensionType,
) -> x509.Certificate:
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256())


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_name("Outrider authority"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not (host and host.isascii() and not set(host) & set(" :/")):
        raise InvalidRequest(
            f"a certificate names hosts or addresses, without port or scheme: got {host!r}"
        )
    return x509.DNSName(host)


class CertificateFiles(NamedTuple):
    """The files of a certificate. Clients need `ca`; the target needs `certificate` and `key`."""

    ca: Path
    certificate: Path
    key: Path


def make_certificate(directory: Path, hosts: Sequence[str]) -> CertificateFiles:
    """Write ca.pem, cert.pem and key.pem for these host names and addresses.

    Raises InvalidRequest rather than overwrite a file.
    """
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
    """Create the file with this mode from the start, so that others can never read a key."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def certificate_hosts(path: Path) -> tuple[str, ...]:
    """Return names and addresses of the first certificate in a PEM file, at least one.

    Raises InvalidRequest if there is no certificate, or it names no host.
    """
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise InvalidRequest(f"{path}: this must be a certificate with host names") from error
    return tuple(str(name.value) for name in names)
