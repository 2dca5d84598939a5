"""The flags of two sides that talk: where a target listens, how a client finds it, how each proves
who it is, and how a target tells what it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, model_validator

from grpc_comm.client.named_targets import read_target
from grpc_comm.transport import DNS, Address, Endpoint, parse_address
from inference.flags.group import Group, Metavar
from inference.flags.values import File, Host, Name, Port, Seconds, Words

if TYPE_CHECKING:
    from grpc_comm.security import SecurityOptions


class PortOptions(Group, title="network"):
    port: Port = 50051
    """port of the target; 0 lets the system choose where a target listens"""


class TlsOptions(Group, title="security"):
    """Proofs of who a side is, and checks of the other side."""

    tls_cert: File | None = None
    """certificate of this side; required for a target with TLS"""
    tls_key: File | None = None
    """private key of --tls_cert"""
    tls_ca: File | None = None
    """authority that signed the other side's certificate; a target with one requires client
    certificates"""
    token_file: File | None = None
    """file with the bearer token in its first line"""
    insecure: bool = False
    """allow remote use without TLS or token"""

    @property
    def security(self) -> SecurityOptions:
        """The files by which this side proves who it is, and checks the other one. Only a target
        has keys, and only a client --tls.
        """
        from grpc_comm.security import SecurityOptions  # needs gRPC, which help does not

        names = ("tls_cert", "tls_key", "tls_ca", "token_file", "keys_file")
        files = {name: Path(value) for name in names if (value := getattr(self, name, None))}
        return SecurityOptions(**files, tls=getattr(self, "tls", False), insecure=self.insecure)


class ConnectionOptions(TlsOptions, PortOptions, title="network"):
    """The place of a client's target, and the choice of one of its models."""

    target: Name | None = None
    """name of a target that `outrider deploy up` started; replaces --target_host, --tls_ca and
    --token_file"""
    target_host: Host = "127.0.0.1"
    """target, as HOST or HOST:PORT; several replicas as A,B, or as dns:///HOST for all addresses of
    a name; `outrider up` without it starts a target itself"""
    patience: Seconds = 30.0
    """how long to retry a full or unreachable target"""
    model_name: Name | None = None
    """model of a target that serves several (default: its first)"""
    tls: bool = False
    """TLS with the system's certificate authorities"""

    @property
    def endpoints(self) -> list[Endpoint]:
        """Endpoints of the target's replicas, with --port where --target_host names no port."""
        return [self._endpoint(host.strip()) for host in self.target_host.split(",")]

    @property
    def addresses(self) -> str:
        """The endpoints as a user writes them."""
        return ",".join(map(str, self.endpoints))

    def _endpoint(self, text: str) -> Endpoint:
        host = text.removeprefix(DNS)
        named = host.startswith("[") or host.count(":") == 1  # HOST:PORT or [IPv6]:PORT
        address = parse_address(host) if named else Address(host, self.port)
        return Endpoint(address, resolved=text.startswith(DNS))

    @property
    def is_local(self) -> bool:
        """Whether the target is on this machine. To a named one a tunnel may begin here."""
        return self.target is None and all(endpoint.address.loopback for endpoint in self.endpoints)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Set the flags that the named target stands for. Raises ValueError where one differs."""
        if not values.get("target"):
            return values
        named = read_target(values["target"])
        meant = {
            "target_host": named.address,
            "tls_ca": str(named.ca_file),
            "token_file": str(named.token_file),
        }
        for flag, value in meant.items():
            if values.get(flag) not in (None, value):
                raise ValueError(f"--target {named.name} already sets --{flag}: give one of them")
        return values | meant

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        hosts = [endpoint.address.host for endpoint in self.endpoints]
        if not all(host and "/" not in host for host in hosts):
            raise ValueError(f"--target_host {self.target_host}: HOST or HOST:PORT is needed")
        return self


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    for origin in origins:
        parts = urlsplit(origin)
        address = f"{parts.scheme}://{parts.netloc}"
        if parts.scheme not in ("http", "https") or not parts.hostname or origin != address:
            raise ValueError(f"https://HOST or http://HOST:PORT is needed: got {origin}")
    return origins


Origins: TypeAlias = Annotated[Words, AfterValidator(_origins), Metavar("ORIGIN,...")]


class HttpOptions(Group, title="network"):
    """Addresses on which `serve` listens for HTTP, and the clients that it listens to."""

    http_host: Host = "127.0.0.1"
    """address to serve HTTP on"""
    http_port: Port = 8000
    """port to serve HTTP on; 0 lets the system choose"""
    http_cert: File | None = None
    """certificate for HTTPS"""
    http_key: File | None = None
    """private key of --http_cert"""
    api_keys: File | None = None
    """file with the API keys of HTTP clients, one a line; required unless
    --http_host is this machine"""
    admin_keys: File | None = None
    """file with administrators' API keys, one a line; if keys are in use, only administrators
    change, stop or steer the target"""
    origins: Origins = ()
    """addresses of pages and reverse proxies that may call this server: https://HOST,..."""


class HostOptions(Group, title="network"):
    host: Host = "127.0.0.1"
    """address to listen on; for a certificate, the name in it"""


class KeysOptions(Group, title="security"):
    keys_file: File | None = None
    """clients' keys, each with its own limits; `outrider keys` adds one to this file"""


class SessionOptions(Group, title="network"):
    """The sessions that a target takes, and what it keeps of them."""

    grace: Seconds = 5.0
    """seconds that open sessions may keep running after SIGTERM"""
    share_prefixes: bool = False
    """let sessions reuse cached prompts of other keys"""


class ListeningOptions(KeysOptions, TlsOptions, PortOptions, HostOptions, title="network"):
    """The address on which a target listens, and its sessions."""

    sessions: SessionOptions = SessionOptions()


class ObservingOptions(Group, title="observing"):
    """Reports of a target on what it does: metrics and log."""

    metrics_port: Port | None = None
    """port for Prometheus metrics and /healthz; 0 lets the system choose"""
    metrics_host: Host = "127.0.0.1"
    """address to serve metrics on"""
    log: Literal["text", "json"] = "text"
    """log on stderr: text for warnings and errors, or JSON lines, which also have each session's
    start and end"""
