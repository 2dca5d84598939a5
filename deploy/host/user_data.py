"""User data of hosts: shell scripts that cloud-init runs once, as root.

Each script schedules the end of its host's lifetime and installs Outrider from a wheel with a known
digest. The script of a target then downloads the model or artefact and the secrets, and starts the
systemd unit. It has no secrets itself: the host reads the certificate, its key and the keys file
from AWS Systems Manager. The script of a job runs all commands in turn, even after one fails, and
always powers the host off. A job writes to the bucket:

    REPORTS/status.json   {"state": "running" | "built" | "failed", "step", "digest"}
    REPORTS/log.txt       all output
    REPORTS/results/      the files that the commands wrote to RESULTS

All values are quoted for the shell; deploy/commands/options.py checks their formats.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from inference.backends.neuron.sdk import INDEX, WHEELS
from inference.errors import InvalidRequest

MAX_BYTES = 16_384
"""EC2's limit for user data."""
PORT = 50051
"""Port of the target."""
METRICS_PORT = 9100
"""Port of the target's metrics, which only the host can reach. The idle timer reads them."""

WORK = "/var/lib/outrider-job"
ARTEFACT = f"{WORK}/artefact"
RESULTS = f"{WORK}/results"

_HERE = Path(__file__).parent
_UNITS = _HERE.parent / "systemd"
_LIBRARIES = "aws-neuronx-runtime-lib=2.33.* aws-neuronx-collectives=2.33.* g++"
"""Packages of apt that the AWS base image lacks, in the versions of SDK 2.31. From 2.34 on, the
runtime lacks symbols of its earlier interface, and imports fail.
"""

FlagValue = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The settings of Outrider on a host that powers itself off."""

    region: str
    wheel: str  # s3://BUCKET/.../outrider-VERSION-py3-none-any.whl
    wheel_sha256: str
    hub_token: str | None = None  # SecureString with the Hugging Face token, if the model needs one
    venv: str | None = None  # of AWS's machine image for Neuron; None: a new one
    lifetime_hours: float  # from boot until the host powers itself off


@dataclass(frozen=True, kw_only=True)
class JobSettings(Installation):
    """The settings of a host that runs a job."""

    commands: tuple[tuple[str, ...], ...]  # arguments of `python -m`; an artefact is in ARTEFACT
    reports: str  # s3://BUCKET/PREFIX


@dataclass(frozen=True, kw_only=True)
class HostSettings(Installation):
    """The settings of a host that serves an artefact or a checkpoint; without either, the embedded
    target.
    """

    secrets: tuple[str, str, str]  # SecureStrings: certificate, its key, keys file
    artifact_store: str | None = None  # s3://BUCKET/PREFIX of the artefact
    digest: str | None = None  # of the artefact's manifest, or of the model's files on S3
    model: str | None = None  # NAME@COMMIT on the hub, or s3://BUCKET/PREFIX
    flags: Mapping[str, FlagValue] = field(default_factory=dict)  # of the target, by name
    host: str = "127.0.0.1"  # address to listen on; the default suffices for a tunnel
    port: int = PORT
    metrics_port: int = METRICS_PORT
    idle_minutes: int  # without a session until the host is powered off

    @property
    def target_options(self) -> dict[str, FlagValue]:
        """Return the content of the target's file of options on the host."""
        options: dict[str, FlagValue] = {
            **self.flags,
            "role": "target",
            "host": self.host,
            "port": self.port,
            "tls_cert": "/etc/outrider/cert.pem",
            "tls_key": "/etc/outrider/key.pem",
            "keys_file": "/etc/outrider/keys.json",
            "metrics_port": self.metrics_port,
        }
        if self.artifact_store is not None:
            options["artifact"] = "/var/lib/outrider/artifact"
        elif self.model is not None:
            on_s3 = self.model.startswith("s3://")
            options["model"] = "/var/lib/outrider/model" if on_s3 else self.model
        return options


def user_data(settings: HostSettings) -> str:
    """Return the script of a target's host. Raises InvalidRequest if it exceeds EC2's limit."""
    certificate, key, keys_file = settings.secrets
    values = {
        "artifact_store": settings.artifact_store,
        "digest": settings.digest,
        "model": settings.model,
        "certificate_parameter": certificate,
        "key_parameter": key,
        "keys_file_parameter": keys_file,
        "metrics_port": settings.metrics_port,
        "idle_minutes": settings.idle_minutes,
    }
    # one option per line; JSON scalars are valid YAML
    options = "".join(f"{k}: {json.dumps(value)}\n" for k, value in settings.target_options.items())
    files = {"target_options": options}
    files |= {unit.name: unit.read_text() for unit in sorted(_UNITS.iterdir())}
    printing = "".join(
        f"{name}() {{ cat <<'END_OF_FILE'\n{content}END_OF_FILE\n}}\n"
        for name, content in files.items()
    )
    script = _script(settings, values, printing, "setup.sh")
    if len(script.encode()) > MAX_BYTES:
        raise InvalidRequest(
            f"the host's flags make its user data {len(script.encode())} bytes long; EC2 takes "
            f"{MAX_BYTES}"
        )
    return script


def job_script(settings: JobSettings) -> str:
    """Return the script of a job's host."""
    lines = "".join(
        f'    "$python" -m {shlex.join(words)} || failed=$?\n' for words in settings.commands
    )
    body = f"run_commands() {{\n    local failed=0\n{lines}    return $failed\n}}\n"
    return _script(settings, {"reports": settings.reports}, body, "job.sh")


def _script(
    settings: Installation,
    values: Mapping[str, str | int | None],
    functions: str,
    main: str,
) -> str:
    """Return a script for cloud-init: variables, functions, install.sh, then the main file.

    values: additional variables by name; None for an empty one
    main: name of the file in this directory that ends the script
    """
    on_image = settings.venv is not None
    everywhere = {
        "region": settings.region,
        "wheel": settings.wheel,
        "wheel_sha256": settings.wheel_sha256,
        "hub_token_parameter": settings.hub_token,
        "image_venv": settings.venv,
        "neuron_wheels": "\n".join((f"--extra-index-url {INDEX}", *WHEELS)) if on_image else None,
        "neuron_libraries": _LIBRARIES if on_image else None,
        "extras": "torch,aws",
        "lifetime_minutes": max(1, round(settings.lifetime_hours * 60)),
    }
    assigned = "".join(
        f"{name}={shlex.quote('' if value is None else str(value))}\n"
        for name, value in {**everywhere, **values}.items()
    )
    files = "".join((_HERE / name).read_text() for name in ("install.sh", main))
    return f"#!/bin/bash\n{assigned}{functions}{files}"
