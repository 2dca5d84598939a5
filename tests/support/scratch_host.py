"""A host to set up: this machine's root seen through an overlay, in a mount namespace of its own.

What is written there is gone with it. Programs that would act on the machine are stand-ins which
note how they were called. It needs root and Linux; `scratch_host` skips the test without them.

Units of hosts are read without systemd.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.host.user_data import ARTEFACT, HostSettings, JobSettings
from tests.support.repository import ROOT

CALLS = "/var/log/calls"
IMAGE_VENV = "/opt/image_venv"
PINNED = {"torch_neuronx": "2.9.0.2.15.32035", "transformers": "4.57.1"}
"""Packages of an image whose versions pip sees."""
_PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ENTER = """set -e
mount -t tmpfs scratch "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay scratch -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs scratch "$1/root/run"
mount -t tmpfs scratch "$1/root/tmp"
chmod 1777 "$1/root/tmp"
exec chroot "$1/root" sh -c 'echo ready; exec sleep infinity'
"""
_NOTED = f'#!/bin/sh\necho "$(basename "$0") $*" >> {CALLS}\n'
_AWS = (
    _NOTED
    + """
case "$1 $2" in
    's3 cp')
        shift 2
        while [ "${1#-}" != "$1" ]; do shift; done
        from=$1 to=$2
        case "$from" in s3://*) from=/srv/aws/$from ;; esac
        case "$to" in s3://*) to=/srv/aws/$to; mkdir -p "$(dirname "$to")" ;; esac
        cp -r "$from" "$to" ;;
    'ssm get-parameter')
        while [ "$1" != --name ]; do shift; done
        cat "/srv/aws/ssm/$2" ;;
esac
"""
)
"""Stands in for AWS's command line: objects and parameters are files below /srv/aws.
Objects go both ways.
"""


@dataclass(frozen=True)
class ScratchHost:
    """Such a host, while the process `holder` lives."""

    holder: int

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.holder}/root")

    def write(self, path: str, text: str, mode: int = 0o644) -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(mode)
        return place

    def put_object(self, url: str, source: Path) -> None:
        """Put a file or a directory where the stand-in of `aws s3` looks for it."""
        place = self.root / "srv/aws" / url
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, place)

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.holder), "-m", "-r", "-w", *words]

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env={"PATH": _PATH, "LANG": "C.UTF-8", **environment},
            capture_output=True,
            text=True,
        )

    def boot(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run user data, as cloud-init does. pip has no index to ask."""
        self.write("/var/lib/cloud/user-data", script, 0o700)
        offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
        return self.run("/var/lib/cloud/user-data", **offline, **environment)

    def calls(self, program: str) -> list[str]:
        noted = self.root / CALLS.lstrip("/")
        lines = noted.read_text().splitlines() if noted.exists() else []
        return [line.removeprefix(f"{program} ") for line in lines if line.split()[0] == program]

    def make_image_venv(self, stubs: Mapping[str, str]) -> None:
        """A machine image's environment. stubs: names and versions that pip sees, too"""
        assert self.run(sys.executable, "-m", "venv", "--without-pip", IMAGE_VENV).returncode == 0
        here = Path(sysconfig.get_path("purelib"))
        (packages,) = (self.root / IMAGE_VENV.lstrip("/") / "lib").glob("*/site-packages")
        left_out = ("outrider", "_editable_impl_outrider", *(f"{name}-" for name in stubs))
        for entry in here.iterdir():
            if not entry.name.startswith(left_out):
                (packages / entry.name).symlink_to(entry)
        for name, version in stubs.items():
            record = packages / f"{name}-{version}.dist-info"
            record.mkdir()
            (record / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            )
        for path in (Path(sys.executable).resolve(), here):
            for parent in path.parents:  # another user runs them
                (self.root / parent.relative_to("/")).chmod(0o755)


@contextmanager
def scratch_host() -> Iterator[ScratchHost]:
    """Yields a host with stand-ins, and an image's environment is still to be made."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a mount namespace with an overlay needs Linux and root")
    with subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, "sh", "/mnt"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            holder.wait()
            pytest.skip(f"no overlay in a mount namespace here: {holder.stderr.read()}")
        host = ScratchHost(holder.pid)
        try:
            for name in ("systemctl", "shutdown", "snap", "apt-get"):
                host.write(f"/usr/local/bin/{name}", _NOTED, 0o755)
            host.write("/usr/local/bin/aws", _AWS, 0o755)
            host.write(CALLS, "", 0o666)
            yield host
        finally:
            holder.kill()


def build_wheel(directory: Path) -> Path:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = directory.glob("*.whl")
    return wheel


Unit = Mapping[str, list[str]]
"""The settings of a unit; one may stand several times."""


def read_unit(path: Path) -> Unit:
    unit = defaultdict[str, list[str]](list)
    for line in path.read_text().splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            unit[name].append(value)
    return unit


def variables(pairs: str) -> dict[str, str]:
    """The values of NAME=VALUE NAME=VALUE."""
    return dict(pair.split("=", 1) for pair in pairs.split())


DIGEST = "0123456789abcdef" * 4
JOB = JobSettings(
    region="us-west-2",
    wheel="s3://bucket/outrider.whl",
    wheel_sha256=DIGEST,
    commands=(("compile", "--target=cpu", f"--out={ARTEFACT}", "--push=s3://bucket/artefacts"),),
    reports="s3://bucket/builds-of/build-1",
    lifetime_hours=6.0,
)


def settings(**changes: Any) -> HostSettings:
    given: dict[str, Any] = {
        "region": "us-west-2",
        "wheel": "s3://bucket/t1/outrider-0.1.0-py3-none-any.whl",
        "wheel_sha256": DIGEST,
        "secrets": ("/outrider/cert", "/outrider/key", "/outrider/keys"),
        "idle_minutes": 30,
        "lifetime_hours": 8.0,
    }
    return HostSettings(**given | changes)
