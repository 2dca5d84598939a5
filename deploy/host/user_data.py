"""User data of hosts: shell scripts that cloud-init runs once, as root.

Each arms the end of its host's lifetime and installs Outrider from a wheel of known digest. The
script of a target's host then fetches what is served and the secrets, and starts the systemd unit.
It holds no secret: certificate, key and keys file are read from parameters of AWS Systems Manager
on the host. That of a job's host runs all commands one after the other, also after one that
fails, and always powers the host off. In the bucket of a job lie:

    REPORTS/status.json   {"state": "running" | "built" | "failed", "step", "digest"}
    REPORTS/log.txt       all that was printed
    REPORTS/results/      the files that the commands left in RESULTS

Every value is quoted for the shell. Flags check their forms (deploy/commands/options.py).
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
"""EC2 takes no longer user data."""
METRICS_PORT = 9100
"""Port of the target's metrics, on the host alone. The idle timer reads it."""

WORK = "/var/lib/outrider-job"
ARTEFACT = f"{WORK}/artefact"
RESULTS = f"{WORK}/results"

_HERE = Path(__file__).parent
_UNITS = _HERE.parent / "systemd"
_LIBRARIES = "aws-neuronx-runtime-lib=2.33.* aws-neuronx-collectives=2.33.* g++"
"""apt's packages that AWS's base image lacks beside its driver and tools: those of SDK 2.31. From
2.34 on the runtime lacks symbols of its earlier interface, which imports fail on.
"""

FlagValue = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Outrider on a host that ends itself."""

    region: str
    wheel: str  # s3://BUCKET/.../outrider-VERSION-py3-none-any.whl
    wheel_sha256: str
    hub_token: str | None = None  # SecureString with the token that the model's hub asks for
    venv: str | None = None  # of AWS's machine image for Neuron; None: a new one
    lifetime_hours: float  # since boot until the host is powered off


@dataclass(frozen=True, kw_only=True)
class JobSettings(Installation):
    """The settings of a host that runs a job."""

    commands: tuple[tuple[str, ...], ...]  # words behind `python -m`; an artefact is in ARTEFACT
    reports: str  # s3://BUCKET/PREFIX


@dataclass(frozen=True, kw_only=True)
class HostSettings(Installation):
    """The settings of a host that serves an artefact, or a checkpoint, or the embedded target
    where neither is named.
    """

    secrets: tuple[str, str, str]  # SecureStrings: certificate, its key, the clients' keys file
    artifact_store: str | None = None  # s3://BUCKET/PREFIX that the artefact was pushed to
    digest: str | None = None  # of the artefact's manifest, or of the model's files on S3
    model: str | None = None  # NAME@COMMIT of the hub, or s3://BUCKET/PREFIX
    flags: Mapping[str, FlagValue] = field(default_factory=dict)  # of the target, by name
    host: str = "127.0.0.1"  # address to listen on; a tunnel needs no other
    port: int = 50051
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
            "metrics_host": "127.0.0.1",
        }
        if self.artifact_store is not None:
            options["artifact"] = "/var/lib/outrider/artifact"
        elif self.model is not None:
            on_s3 = self.model.startswith("s3://")
            options["model"] = "/var/lib/outrider/model" if on_s3 else self.model
        return options


def user_data(settings: HostSettings) -> str:
    """The script of a target's host. Raises InvalidRequest if it is longer than EC2 takes."""
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
    # one option a line; a JSON scalar is one of YAML's
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
    """The script of a job's host."""
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
    """A script for cloud-init: variables, functions, install.sh, then the file that acts.

    values: by the name of their variable, beside those of every host; None gives an empty one
    main: name of the file beside this one that ends the script
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
