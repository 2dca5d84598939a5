"""Network flags: addresses, TLS, tokens and keys; a target's sessions, metrics and log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from grpc_comm.client.named_targets import read_target
from grpc_comm.transport import DNS, Address, Endpoint, parse_address
from inference.errors import InvalidRequest
from inference.flags.group import Group, Metavar
from inference.flags.values import File, Host, Name, Port, Seconds, Words

if TYPE_CHECKING:
    from grpc_comm.security import SecurityOptions


SYSTEM = "system"
"""Value of a client's --tls_ca for the system's certificate authorities."""


class PortOptions(Group, title="network"):
    port: Port = 50051
    """port of the target; a target started with 0 picks a free port"""


class TlsOptions(Group, title="security"):
    """Credentials of this side of a connection, and how it checks the other side."""

    tls_cert: File | None = None
    """TLS certificate to present to the peer; a target needs one for TLS"""
    tls_key: File | None = None
    """private key of --tls_cert"""
    tls_ca: File | None = None
    """CA certificate to verify the peer with, for a client also `system` for the system's
    certificate authorities; a target with --tls_ca requires clients to present a certificate"""
    token_file: File | None = None
    """file with the bearer token on its first line"""
    insecure: bool = False
    """allow remote use without TLS or token"""

    @property
    def security(self) -> SecurityOptions:
        """The files for gRPC's security. Only a target has --keys_file."""
        from grpc_comm.security import SecurityOptions  # needs gRPC, which help does not

        names = ("tls_cert", "tls_key", "tls_ca", "token_file", "keys_file")
        files: dict[str, Any] = {
            name: Path(value) for name in names if (value := getattr(self, name, None))
        }
        return SecurityOptions(**files, insecure=self.insecure)


class ConnectionOptions(TlsOptions, PortOptions, title="network"):
    """Address of a client's target, and the model to use at that target."""

    target: Name | None = None
    """name of a target that `outrider deploy up` started; sets --target_host, --tls_ca and
    --token_file"""
    target_host: Host = "127.0.0.1"
    """target, as HOST or HOST:PORT; replicas separated by commas, or dns:///HOST for all addresses
    of a name; without it `outrider up` starts a target"""
    patience: Seconds = 30.0
    """seconds to keep retrying a full or unreachable target"""
    model_name: Name | None = None
    """model to use at a target that serves several (default: the first)"""

    @property
    def trusts_system(self) -> bool:
        """Whether the system's certificate authorities verify the target."""
        return self.tls_ca == SYSTEM

    @property
    def security(self) -> SecurityOptions:
        """The files for gRPC's security."""
        if self.trusts_system:
            return replace(self.replace(tls_ca=None).security, tls=True)
        return super().security

    @property
    def endpoints(self) -> list[Endpoint]:
        """Endpoints of the target's replicas, with --port where --target_host names no port."""
        return [self._endpoint(host.strip()) for host in self.target_host.split(",")]

    @property
    def addresses(self) -> str:
        """The endpoints in the form of --target_host."""
        return ",".join(map(str, self.endpoints))

    def _endpoint(self, text: str) -> Endpoint:
        host = text.removeprefix(DNS)
        has_port = host.startswith("[") or host.count(":") == 1  # HOST:PORT or [IPv6]:PORT
        address = parse_address(host) if has_port else Address(host, self.port)
        return Endpoint(address, resolved=text.startswith(DNS))

    @property
    def is_local(self) -> bool:
        """Whether the target is on this machine; False for --target, which may use a tunnel."""
        return self.target is None and all(endpoint.address.loopback for endpoint in self.endpoints)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Set the flags that --target implies. Raises ValueError if one has another value."""
        if not values.get("target"):
            return values
        target = read_target(values["target"])
        flags = {
            "target_host": target.address,
            "tls_ca": str(target.ca_file),
            "token_file": str(target.token_file),
        }
        for flag, value in flags.items():
            if values.get(flag) not in (None, value):
                raise ValueError(f"--target {target.name} already sets --{flag}: give one of them")
        return values | flags

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        hosts = [endpoint.address.host for endpoint in self.endpoints]
        if not all(host and "/" not in host for host in hosts):
            raise ValueError(f"--target_host {self.target_host}: HOST or HOST:PORT is needed")
        return self


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        url = urlsplit(origin)
        address = f"{url.scheme}://{url.netloc}"
        if url.scheme not in ("http", "https") or not url.hostname or origin != address:
            raise ValueError(f"https://HOST or http://HOST:PORT is needed: got {origin}")
    return origins


Origins: TypeAlias = Annotated[Words, AfterValidator(_origins), Metavar("ORIGIN,...")]


class HttpOptions(Group, title="network"):
    """Address of the HTTP server, and the clients that may call it."""

    http_host: Host = "127.0.0.1"
    """address to serve HTTP on"""
    http_port: Port = 8000
    """port to serve HTTP on; 0 picks a free port"""
    http_cert: File | None = None
    """certificate for HTTPS"""
    http_key: File | None = None
    """private key of --http_cert"""
    api_keys: File | None = None
    """file with the API keys of HTTP clients, one per line; required unless
    --http_host is this machine"""
    admin_keys: File | None = None
    """file with administrators' API keys, one per line; if there are any keys, only administrators
    may change, stop or steer the target"""
    origins: Origins = ()
    """addresses of pages and reverse proxies that may call this server: https://HOST,..."""


class HostOptions(Group, title="network"):
    host: Host = "127.0.0.1"
    """address to listen on; for outrider cert, the name to certify"""


class KeysOptions(Group, title="security"):
    keys_file: File | None = None
    """file of clients' keys, each with its own limits; `outrider keys` adds one"""


class SessionOptions(Group, title="network"):
    """Shutdown and cache sharing of a target's sessions."""

    grace: Seconds = 5.0
    """seconds that open sessions may keep running after SIGTERM"""
    share_prefixes: bool = False
    """let sessions reuse prompts that were cached for another client's key"""


class ListeningOptions(
    KeysOptions, TlsOptions, SessionOptions, PortOptions, HostOptions, title="network"
):
    """The address on which a target listens, and its sessions."""


def _metrics(place: str) -> str:
    """Check a value of --metrics_port. Raises ValueError."""
    try:
        return str(parse_address(place if ":" in place else f"127.0.0.1:{place}"))
    except InvalidRequest as error:
        raise ValueError("a port from 0 to 65535, or HOST:PORT, is needed") from error


class ObservingOptions(Group, title="observing"):
    """Metrics and log of a target."""

    metrics_port: Annotated[str, AfterValidator(_metrics), Metavar("[HOST:]PORT")] | None = None
    """port for Prometheus metrics and /healthz on this machine, or HOST:PORT to serve them to
    others; 0 picks a free port"""

    @property
    def metrics(self) -> Address | None:
        """The address of the metrics; None to serve none."""
        return None if self.metrics_port is None else parse_address(self.metrics_port)

    log: Literal["text", "json"] = "text"
    """format of the log on stderr: text (only warnings and errors), or json (JSON lines, also for
    each session's start and end)"""
