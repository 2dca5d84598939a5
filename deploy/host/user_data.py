"""User data of a target's host: a shell script that cloud-init runs once, as root.

The script arms the timers that end the host, installs Outrider from a wheel of known digest,
fetches what is served and the secrets, and starts the systemd unit. It holds no secret:
certificate, key and keys file are read from parameters of AWS Systems Manager on the host.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from inference.errors import InvalidRequest

CONFIG = "/etc/outrider/target.yaml"
"""The target's options on its host, in the form that --config reads."""

MOST_BYTES = 16_384
"""EC2 takes no longer user data."""

ROOT = Path(__file__).parents[1]
UNITS = tuple(sorted(path.name for path in (ROOT / "systemd").iterdir()))
INSTALL, SETUP = Path(__file__).parent / "install.sh", Path(__file__).parent / "setup.sh"

_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.*'()/-]*)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PARAMETER = re.compile(r"/?[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
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
            _need(name, _PARAMETER, "the name of a parameter, such as /outrider/NAME/key")


@dataclass(frozen=True)
class HostSettings:
    """What a host is to be. Raises InvalidRequest for a value that cannot be.

    A host serves an artefact, or a checkpoint, or the embedded target where neither is named.
    """

    region: str
    wheel: str  # s3://BUCKET/PREFIX/outrider-VERSION-py3-none-any.whl
    wheel_sha256: str
    secrets: HostSecrets
    artifact_store: str | None = None  # s3://BUCKET/PREFIX that the artefact was pushed to
    artifact_digest: str | None = None  # of its manifest
    model: str | None = None  # a checkpoint: hub name, or s3://BUCKET/PREFIX of its files
    role: Literal["target", "fused_target"] = "target"
    flags: Mapping[str, FlagValue] = field(default_factory=dict)  # of the role, by name
    host: str = "127.0.0.1"  # address to listen on; a tunnel needs no other
    port: int = 50051
    metrics_port: int = 9100  # of the host alone; the idle timer reads it
    venv: str | None = None  # of the machine image, such as AWS's for Neuron; None: a new one
    extra_index: str | None = None  # a package index that pip asks, too
    idle_minutes: int | None = 30  # without a session until the host is powered off
    lifetime_hours: float | None = 12.0  # since boot until the host is powered off

    def __post_init__(self) -> None:
        _need(self.region, re.compile(r"[a-z]{2}(-[a-z]+)+-\d+"), "a region, such as us-west-2")
        _need(self.wheel, re.compile(_S3.pattern + r"\.whl"), "s3://BUCKET/.../NAME.whl")
        _need(self.wheel_sha256, _SHA256, "64 hexadecimal digits")
        if (self.artifact_store is None) != (self.artifact_digest is None):
            raise InvalidRequest("an artefact's store and its digest belong together: give both")
        if self.artifact_store is not None and self.model is not None:
            raise InvalidRequest("a host serves an artefact or a model: give one")
        if self.artifact_store is not None and self.artifact_digest is not None:
            _need(self.artifact_store, _S3, "s3://BUCKET/PREFIX")
            _need(self.artifact_digest, _SHA256, "64 hexadecimal digits")
        if self.model is not None and "://" in self.model:
            _need(self.model, _S3, "a hub name or s3://BUCKET/PREFIX")
        for name in self.flags:
            _need(name, _FLAG, "the name of a flag, without its dashes")
            if name in _decided(self):
                raise InvalidRequest(f"--{name} is decided by the host's other settings")
        for port in (self.port, self.metrics_port):
            if not 1 <= port <= 65535:
                raise InvalidRequest(f"port {port}: 1 to 65535 is needed")
        if self.port == self.metrics_port:
            raise InvalidRequest(f"port {self.port} is that of the metrics, too: two are needed")
        for name, value in (("idle", self.idle_minutes), ("lifetime", self.lifetime_hours)):
            if value is not None and not 0 < value < float("inf"):
                raise InvalidRequest(f"{name} time {value}: more than 0 is needed, or none")

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
    made = [*_assignments(settings), *_files(settings)]
    script = "".join(["#!/bin/bash\n", *made, INSTALL.read_text(), SETUP.read_text()])
    if len(script.encode()) > MOST_BYTES:
        raise InvalidRequest(
            f"the host's flags make its user data {len(script.encode())} bytes long; EC2 takes "
            f"{MOST_BYTES}"
        )
    return script


def target_options(settings: HostSettings) -> dict[str, FlagValue]:
    """The target's options, as they stand in its file on the host."""
    return {**settings.flags, **_decided(settings)}


def _decided(settings: HostSettings) -> dict[str, FlagValue]:
    options: dict[str, FlagValue] = {
        "role": settings.role,
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


def _assignments(settings: HostSettings) -> Iterator[str]:
    """The script's variables; an empty one says that there is no such thing."""
    lifetime = settings.lifetime_hours
    values = {
        "region": settings.region,
        "wheel": settings.wheel,
        "wheel_sha256": settings.wheel_sha256,
        "artifact_store": settings.artifact_store,
        "artifact_digest": settings.artifact_digest,
        "model": settings.model,
        "image_venv": settings.venv,
        "extras": "aws,tls,metrics",
        "extra_index": settings.extra_index,
        "certificate_parameter": settings.secrets.certificate,
        "key_parameter": settings.secrets.key,
        "keys_file_parameter": settings.secrets.keys_file,
        "metrics_port": settings.metrics_port,
        "idle_minutes": settings.idle_minutes,
        "lifetime_minutes": None if lifetime is None else max(1, round(lifetime * 60)),
    }
    for name, value in values.items():
        yield f"{name}={shlex.quote('' if value is None else str(value))}\n"


def _files(settings: HostSettings) -> Iterator[str]:
    """Functions that print the files which the script writes."""
    yield _printing("target_options", _yaml(target_options(settings)))
    for name in UNITS:
        yield _printing(name, (ROOT / "systemd" / name).read_text())


def _printing(name: str, content: str) -> str:
    return f"{name}() {{ cat <<'END_OF_FILE'\n{content}END_OF_FILE\n}}\n"


def _yaml(options: Mapping[str, FlagValue]) -> str:
    """YAML with one option a line; a JSON scalar is one of YAML's."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in options.items())


def _need(value: str, form: re.Pattern[str], need: str) -> None:
    if not form.fullmatch(value):
        raise InvalidRequest(f"{value!r}: {need} is needed")
