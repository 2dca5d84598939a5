"""The flags of two sides that talk: where a target listens, how a client finds it, how each proves
who it is, and how a target tells what it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from grpc_comm.client.named_targets import read_target
from grpc_comm.transport import DNS, Address, Endpoint, parse_address
from inference.flags.group import Group
from inference.flags.values import Count, File, Host, Name, Natural, Port, Seconds

if TYPE_CHECKING:
    from grpc_comm.security import SecurityOptions


class PortOptions(Group, title="network"):
    port: Port = 50051
    """port of the target; where a target listens, 0 lets the system choose"""


class TlsOptions(Group, title="security"):
    """Proofs of who a side is, and checks of the other side."""

    tls_cert: File | None = None
    """certificate of this side; a target needs one for TLS"""
    tls_key: File | None = None
    """private key of --tls_cert"""
    tls_ca: File | None = None
    """authority that signed the other side's certificate; a target given one demands client
    certificates"""
    token_file: File | None = None
    """file whose first line is the bearer token"""
    insecure: bool = False
    """go without TLS and token beyond this machine"""

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
    """a target by its name, as `outrider deploy up` made it: in place of --target_host,
    --tls_ca and --token_file"""
    target_host: Host = "127.0.0.1"
    """where the target is, HOST or HOST:PORT; several replicas: A,B; dns:///HOST has one at each of
    the host's addresses"""
    patience: Seconds = 30.0
    """how long to look for a target that is full or went away"""
    model_name: Name | None = None
    """use this one of the models that the target lists (default: its first)"""
    list_models: bool = False
    """print the names of the models that the target lists, and end"""
    tls: bool = False
    """TLS with the system's authorities"""

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
        return self.target is None and all(one.address.loopback for one in self.endpoints)

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Set the flags that the named target stands for. Raises ValueError where one differs."""
        if not given.get("target"):
            return given
        named = read_target(given["target"])
        meant = {
            "target_host": named.address,
            "tls_ca": str(named.ca_file),
            "token_file": str(named.token_file),
        }
        for flag, value in meant.items():
            if given.get(flag) not in (None, value):
                raise ValueError(f"--target {named.name} says what --{flag} is: give one of them")
        return given | meant

    @model_validator(mode="after")
    def _has_addresses(self) -> Self:
        hosts = [endpoint.address.host for endpoint in self.endpoints]
        if not all(host and "/" not in host for host in hosts):
            raise ValueError(f"--target_host {self.target_host}: HOST or HOST:PORT is needed")
        return self


class HttpOptions(Group, title="network"):
    """Addresses on which `serve` listens for HTTP, and the clients that it listens to."""

    http_host: Host = "127.0.0.1"
    """address on which HTTP is served"""
    http_port: Port = 8000
    """port on which HTTP is served; 0 lets the system choose"""
    http_cert: File | None = None
    """certificate, for HTTPS"""
    http_key: File | None = None
    """private key of --http_cert"""
    api_keys: File | None = None
    """file with the keys of HTTP clients, one a line; needed beyond this machine"""
    admin_keys: File | None = None
    """file with the keys of administrators, one a line: with keys, nobody else changes, stops or
    steers the target in use"""
    http_names: str | None = None
    """further names by which this server may be called, as by a reverse proxy: A,B"""
    http_connections: Count = 512
    """connections of HTTP clients at the same time"""
    origins: str | None = None
    """origins of pages elsewhere that may call this server: A,B (CORS)"""
    most_texts: Count = 64
    """texts at the same time; more are asked to come again"""


class HostOptions(Group, title="network"):
    host: Host = "127.0.0.1"
    """address to listen on; of a certificate: the name in it"""


class KeysOptions(Group, title="security"):
    keys_file: File | None = None
    """clients' keys, each with limits of its own; make-key adds one to this file"""


class SessionOptions(Group, title="network"):
    """The sessions that a target takes, and what it keeps of them."""

    waiting: Natural = 64
    """sessions that may stand in line for a row"""
    lease: Seconds = 15.0
    """how long a silent client's session is held"""
    grace: Seconds = 5.0
    """time that sessions have to leave after the first signal"""
    share_prefixes: bool = False
    """sessions may start from the prompts of other keys"""


class ListeningOptions(KeysOptions, TlsOptions, PortOptions, HostOptions, title="network"):
    """The address on which a target listens, its sessions, and its end."""

    sessions: SessionOptions = SessionOptions()
    end_with_input: bool = False
    """end when standard input ends, as it does when the program that started this is killed"""
    reflection: bool = False
    """tell callers the protocol (gRPC reflection)"""


class ObservingOptions(Group, title="observing"):
    """Reports of a target on what it does: metrics and log."""

    metrics_port: Port | None = None
    """serve Prometheus metrics and /healthz over HTTP on this port; 0 lets the system choose"""
    metrics_host: Host = "127.0.0.1"
    """address on which metrics are served"""
    log: Literal["text", "json"] = "text"
    """form of the log on stderr"""
    log_level: Literal["debug", "info", "warning", "error"] = "warning"
    """info has a line for each session's start and end"""
