"""User data run on a scratch host: what it installs, fetches and starts, and how it fails.

AWS's command line and systemctl are stand-ins. pip, the wheel, the user, the files and the target
are real: the unit's command line serves a model over TLS to who has the key.
"""

from __future__ import annotations

import hashlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZipFile

import boto3
import pytest

import outrider
from compile.store import open_store, push
from deploy.host.user_data import HostSettings, user_data
from grpc_comm.certificate import make_certificate
from grpc_comm.keys import make_key
from inference.files.artifact import check_files, read_manifest
from outrider.models.found_model import EMBEDDED
from tests.support.artifacts import build
from tests.support.cloud import COMMIT, TOKEN, AwsServer, hub_server
from tests.support.repository import ROOT
from tests.support.scratch_host import IMAGE_VENV, ScratchHost, read_unit, scratch_host, settings
from tests.support.wire_fixtures import free_port

pytestmark = pytest.mark.extended

PINNED = {"torch_neuronx": "2.9.0.2.15.32035", "transformers": "4.57.1"}
"""Versions that the image brings, as pip sees them."""


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, a keys file, and the token of its one key."""
    directory = tmp_path_factory.mktemp("credentials")
    make_certificate(directory, ["localhost", "127.0.0.1"])
    token = directory / "token"
    token.write_text(make_key(directory / "keys.json", "laptop"))
    token.chmod(0o600)
    return directory


def digest_of(directory: Path) -> str:
    """The digest of a model's files on S3, by the command that docs/deploy.md has."""
    page = (ROOT / "docs/deploy.md").read_text()
    (command,) = re.findall(r"`cd DIR && ([^`]*)`", page)
    ran = subprocess.run(["bash", "-c", command], cwd=directory, capture_output=True, text=True)
    return ran.stdout.split()[0]


def of_wheel(wheel: Path, **changes: Any) -> HostSettings:
    given: dict[str, Any] = {
        "wheel": f"s3://bucket/{wheel.name}",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "model": "s3://bucket/target",
        "digest": digest_of(EMBEDDED / "target"),
        "flags": {"batch": 2, "grace": 2.0},
        "venv": IMAGE_VENV,
        "port": free_port(),
        "metrics_port": free_port(),
    }
    return settings(**given | changes)


def prepare(host: ScratchHost, wheel: Path, credentials: Path, **stubs: str) -> None:
    host.make_image_venv(PINNED | stubs)
    host.put_object(f"s3://bucket/{wheel.name}", wheel)
    host.put_object("s3://bucket/target", EMBEDDED / "target")
    for name, file in (("cert", "cert.pem"), ("key", "key.pem"), ("keys", "keys.json")):
        host.put_object(f"ssm/outrider/{name}", credentials / file)


def set_up(
    host: ScratchHost, of: HostSettings, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the user data, as cloud-init does. pip has no index to ask."""
    host.write("/var/lib/cloud/user-data", user_data(of), 0o700)
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    return host.run("/var/lib/cloud/user-data", **offline, **environment)


class Made(NamedTuple):
    """A host that was set up."""

    host: ScratchHost
    settings: HostSettings
    printed: str


@pytest.fixture(scope="module")
def made(wheel: Path, credentials: Path) -> Iterator[Made]:
    with scratch_host() as host:
        of = of_wheel(wheel)
        prepare(host, wheel, credentials)
        done = set_up(host, of)
        assert done.returncode == 0, done.stdout + done.stderr
        yield Made(host, of, done.stdout + done.stderr)


@pytest.fixture
def host(request: pytest.FixtureRequest, wheel: Path, credentials: Path) -> Iterator[ScratchHost]:
    """A host on which nothing was run. A test may say which packages its image has instead."""
    with scratch_host() as bare:
        prepare(bare, wheel, credentials, **getattr(request, "param", {}))
        yield bare


def installed(host: ScratchHost) -> set[str]:
    listed = host.run(f"{IMAGE_VENV}/bin/python", "-m", "pip", "list", "--format=freeze")
    return set(listed.stdout.split())


def test_timers_are_armed_first_and_the_target_is_started_before_the_idle_timer(made: Made) -> None:
    assert made.host.calls("systemctl") == [
        "daemon-reload",
        "enable --now outrider-lifetime.timer",
        "enable --now outrider-target.service",
        "enable --now outrider-idle.timer",
    ]
    assert made.host.calls("shutdown") == []


def test_no_package_of_the_image_moved(made: Made) -> None:
    assert {f"{name}=={version}" for name, version in PINNED.items()} <= installed(made.host)


def test_no_secret_is_printed_and_only_the_service_may_read_them(
    made: Made, credentials: Path
) -> None:
    host = made.host
    for name in ("key.pem", "keys.json"):
        for line in (credentials / name).read_text().split():
            assert len(line) < 20 or line not in made.printed
        seen = host.run("stat", "-c", "%U %G %a", f"/etc/outrider/{name}").stdout
        assert seen == "root outrider 640\n"
    assert host.run("runuser", "-u", "nobody", "--", "ls", "/etc/outrider").returncode != 0
    deleted = "ssm delete-parameters --names /outrider/cert /outrider/key /outrider/keys"
    assert deleted in host.calls("aws")


@pytest.fixture
def service(made: Made) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """The unit's command, run as its user with its environment, and its service manager's
    socket.
    """
    host = made.host
    unit = read_unit(host.root / "etc/systemd/system/outrider-target.service")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = host.root / "run/notify"
        manager.bind(str(address))
        address.chmod(0o777)
        manager.settimeout(120)
        user = unit.one("User")
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        words = host.command(*become, "env", "-C", unit.one("WorkingDirectory"))
        with subprocess.Popen(
            [*words, *unit.command("ExecStart", {})],
            env=unit.environment | {"NOTIFY_SOCKET": "/run/notify"},
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process, manager
            finally:
                process.kill()
                address.unlink()


def test_what_the_unit_starts_serves_only_who_has_the_key_and_drains_on_sigterm(
    made: Made, service: tuple[subprocess.Popen[str], socket.socket], credentials: Path
) -> None:
    host, of, _ = made
    process, manager = service
    assert manager.recv(1000).decode().startswith("READY=1\n")
    address, authority = f"localhost:{of.port}", str(credentials / "ca.pem")
    with pytest.raises(outrider.OutriderError, match="token"):
        outrider.connect(address, tls_ca=authority, draft=False)
    token = str(credentials / "token")
    with outrider.connect(address, tls_ca=authority, token_file=token, draft=False) as engine:
        served = engine.generate("def main():", max_tokens=16, seed=1, temperature=0.7)
    with outrider.serve(port=0) as here, outrider.connect(here.address, draft=False) as engine:
        local = engine.generate("def main():", max_tokens=16, seed=1, temperature=0.7)
    assert served.text == local.text
    idle = read_unit(host.root / "etc/systemd/system/outrider-idle.service")
    lines = (host.root / "etc/outrider/host.env").read_text().split()
    variables = dict(line.split("=") for line in lines)
    (host.root / "run/outrider").mkdir(exist_ok=True)
    looked = host.run(*idle.command("ExecCondition", variables))
    assert (looked.returncode, looked.stdout) == (1, "no session for 0 of 30 minutes\n")
    process.send_signal(signal.SIGTERM)
    assert manager.recv(1000).decode().startswith("STOPPING=1\n")
    assert process.wait(30) == 0


def test_a_gated_model_is_fetched_with_a_token_and_then_served_without_one(
    host: ScratchHost, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    host.put_object("ssm/outrider/hub_token", tmp_path / "token")
    name = f"acme/gated@{COMMIT}"
    with hub_server({"acme/gated": EMBEDDED / "target"}, gated="acme/gated") as address:
        of = of_wheel(wheel, model=name, digest=None, hub_token="/outrider/hub_token")
        done = set_up(host, of, HF_ENDPOINT=address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "ssm delete-parameters --names /outrider/hub_token" in host.calls("aws")
    unit = read_unit(host.root / "etc/systemd/system/outrider-target.service")
    find = (
        f"from inference.model.checkpoints.hub import find_model; print(find_model({name!r}).name)"
    )
    found = host.run(f"{IMAGE_VENV}/bin/python", "-c", find, **unit.environment)
    assert found.stdout == f"{COMMIT}\n", found.stderr


def test_a_changed_wheel_is_not_installed_and_the_host_ends(host: ScratchHost, wheel: Path) -> None:
    before = installed(host)
    done = set_up(host, of_wheel(wheel, wheel_sha256="0" * 64, lifetime_hours=2.0))
    assert done.returncode != 0
    assert "FAILED at: Outrider" in done.stdout
    assert installed(host) == before
    assert host.calls("shutdown") == ["-P +30 Outrider was not set up"]
    timer = host.root / "etc/systemd/system/outrider-lifetime.timer.d/lifetime.conf"
    assert "OnBootSec=120min" in timer.read_text()


def test_a_model_on_s3_that_was_changed_is_not_served(host: ScratchHost, wheel: Path) -> None:
    changed = host.root / "srv/aws/s3:/bucket/target/config.json"
    changed.write_text(changed.read_text() + " ")
    done = set_up(host, of_wheel(wheel))
    assert "FAILED at: model" in done.stdout
    assert "enable --now outrider-target.service" not in host.calls("systemctl")


@pytest.mark.parametrize("host", [{"torch": "2.1.0"}], indirect=True)
def test_an_image_that_is_too_old_is_left_as_it_was(wheel: Path, host: ScratchHost) -> None:
    """pip could take the newer torch that it finds, and does not."""
    before = installed(host)
    with ZipFile(host.root / "srv/torch-2.9.0-py3-none-any.whl", "w") as newer:
        named = "Metadata-Version: 2.1\nName: torch\nVersion: 2.9.0\n"
        tagged = "Wheel-Version: 1.0\nTag: py3-none-any\n"
        for name, content in (("METADATA", named), ("WHEEL", tagged), ("RECORD", "")):
            newer.writestr(f"torch-2.9.0.dist-info/{name}", content)
    done = set_up(host, of_wheel(wheel), PIP_FIND_LINKS="/srv")
    assert "FAILED at: Outrider" in done.stdout
    assert "torch" in done.stderr
    assert installed(host) == before


def test_an_artefact_is_pulled_by_its_digest_and_no_other_is_served(
    host: ScratchHost, wheel: Path, tmp_path: Path, aws: AwsServer
) -> None:
    """Outrider's own pull, from a stand-in of S3. Setting up again goes on where it failed."""
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    there = {name: aws.environment[name] for name in names}
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="artefacts")
    manifest, url = build(tmp_path / "artefact"), "s3://artefacts/store"
    digest = push(tmp_path / "artefact", open_store(url), lambda _line: None)
    served = {"model": None, "artifact_store": url}
    wrong = set_up(host, of_wheel(wheel, **served, digest="0" * 64), **there)
    assert "FAILED at: model" in wrong.stdout
    assert "enable --now outrider-target.service" not in host.calls("systemctl")
    right = set_up(host, of_wheel(wheel, **served, digest=digest), **there)
    assert right.returncode == 0, right.stdout + right.stderr
    place = host.root / "var/lib/outrider/artifact"
    check_files(place, read_manifest(place))
    assert read_manifest(place).digest() == manifest.digest()
