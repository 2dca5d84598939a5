"""User data of a target's host: a shell script that cloud-init runs once, as root.

The script arms the timers that end the host, installs Outrider from a wheel of known digest,
fetches what is served and the secrets, and starts the systemd unit. It holds no secret:
certificate, key and keys file are read from parameters of AWS Systems Manager on the host.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.host.installation import PARAMETER, S3_PREFIX, SHA256, Installation, need, script
from inference.errors import InvalidRequest

MOST_BYTES = 16_384
"""EC2 takes no longer user data."""

_UNITS = Path(__file__).parents[1] / "systemd"

_FLAG = re.compile(r"[a-z][a-z0-9_]*")

FlagValue = str | int | float | bool


@dataclass(frozen=True)
class HostSecrets:
    """Names of the SecureString parameters (AWS Systems Manager) that hold a target's secrets."""

    certificate: str  # PEM
    key: str  # PEM, the certificate's private key
    keys_file: str  # JSON, the clients' keys as digests

    def __post_init__(self) -> None:
        for name in (self.certificate, self.key, self.keys_file):
            need(name, PARAMETER, "the name of a parameter, such as /outrider/NAME/key")


@dataclass(frozen=True, kw_only=True)
class HostSettings(Installation):
    """The settings of a host that serves. Raises InvalidRequest for a value that cannot be.

    A host serves an artefact, or a checkpoint, or the embedded target where neither is named.
    """

    secrets: HostSecrets
    artifact_store: str | None = None  # s3://BUCKET/PREFIX that the artefact was pushed to
    digest: str | None = None  # of the artefact's manifest, or of the model's files on S3
    model: str | None = None  # NAME@COMMIT of the hub, or s3://BUCKET/PREFIX
    flags: Mapping[str, FlagValue] = field(default_factory=dict)  # of the target, by name
    host: str = "127.0.0.1"  # address to listen on; a tunnel needs no other
    port: int = 50051
    metrics_port: int = 9100  # of the host alone; the idle timer reads it
    idle_minutes: int  # without a session until the host is powered off

    def __post_init__(self) -> None:
        super().__post_init__()
        on_s3 = self.artifact_store is not None or "://" in (self.model or "")
        if on_s3 != (self.digest is not None):
            raise InvalidRequest("what lies on S3 and its digest belong together: give both")
        if self.artifact_store is not None and self.model is not None:
            raise InvalidRequest("a host serves an artefact or a model: give one")
        if on_s3:
            place = self.artifact_store or self.model or ""
            need(place, S3_PREFIX, "s3://BUCKET/PREFIX, or the hub name of a model,")
            need(self.digest or "", SHA256, "64 hexadecimal digits")
        for name in self.flags:
            need(name, _FLAG, "the name of a flag, without its dashes")
            if name in _decided(self):
                raise InvalidRequest(f"--{name} is decided by the host's other settings")
        for port in (self.port, self.metrics_port):
            if not 1 <= port <= 65535:
                raise InvalidRequest(f"port {port}: 1 to 65535 is needed")
        if self.port == self.metrics_port:
            raise InvalidRequest(f"port {self.port} is that of the metrics, too: two are needed")
        if self.idle_minutes < 1:
            raise InvalidRequest(f"an idle time of {self.idle_minutes} min: 1 or more is needed")

    @property
    def served(self) -> str | None:
        """Directory of what is served, or its hub name; None for the embedded target."""
        if self.artifact_store is not None:
            return "/var/lib/outrider/artifact"
        if self.model is not None and self.model.startswith("s3://"):
            return "/var/lib/outrider/model"
        return self.model


def user_data(settings: HostSettings) -> str:
    """The script. Raises InvalidRequest where it is longer than EC2 takes."""
    made = script(_assignments(settings), *_files(settings), main="setup.sh")
    if len(made.encode()) > MOST_BYTES:
        raise InvalidRequest(
            f"the host's flags make its user data {len(made.encode())} bytes long; EC2 takes "
            f"{MOST_BYTES}"
        )
    return made


def target_options(settings: HostSettings) -> dict[str, FlagValue]:
    """The target's options, as they stand in its file on the host."""
    return {**settings.flags, **_decided(settings)}


def _decided(settings: HostSettings) -> dict[str, FlagValue]:
    options: dict[str, FlagValue] = {
        "role": "target",
        "host": settings.host,
        "port": settings.port,
        "tls_cert": "/etc/outrider/cert.pem",
        "tls_key": "/etc/outrider/key.pem",
        "keys_file": "/etc/outrider/keys.json",
        "metrics_port": settings.metrics_port,
        "metrics_host": "127.0.0.1",
    }
    if settings.served is not None:
        options["artifact" if settings.artifact_store is not None else "model"] = settings.served
    return options


def _assignments(settings: HostSettings) -> dict[str, str]:
    """The script's variables."""
    return settings.assignments("torch,aws") | {
        "artifact_store": settings.artifact_store or "",
        "digest": settings.digest or "",
        "model": settings.model or "",
        "certificate_parameter": settings.secrets.certificate,
        "key_parameter": settings.secrets.key,
        "keys_file_parameter": settings.secrets.keys_file,
        "metrics_port": str(settings.metrics_port),
        "idle_minutes": str(settings.idle_minutes),
    }


def _files(settings: HostSettings) -> Iterator[str]:
    """Functions that print the files which the script writes."""
    yield _printing("target_options", _yaml(target_options(settings)))
    for unit in sorted(_UNITS.iterdir()):
        yield _printing(unit.name, unit.read_text())


def _printing(name: str, content: str) -> str:
    return f"{name}() {{ cat <<'END_OF_FILE'\n{content}END_OF_FILE\n}}\n"


def _yaml(options: Mapping[str, FlagValue]) -> str:
    """YAML with one option a line; a JSON scalar is one of YAML's."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in options.items())
