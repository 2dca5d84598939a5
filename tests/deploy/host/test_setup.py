"""User data run on a scratch host: what it installs, fetches and starts, and how it fails; and the
script of a job's host, which compiles, pushes and reports.

AWS's command line and systemctl are stand-ins. pip, the wheel, the user, the files and the target
are real: the unit's command line serves a model over TLS to who has the key.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

import outrider
from compile.store import open_store, pull, push
from deploy.host.user_data import ARTEFACT, RESULTS, HostSettings, job_script, user_data
from inference.files.artifact import check_files, read_manifest
from outrider.models.found_model import EMBEDDED
from tests.support.artifacts import build
from tests.support.cloud import COMMIT, TOKEN, hub_server
from tests.support.repository import ROOT
from tests.support.scratch_host import (
    IMAGE_VENV,
    JOB,
    PINNED,
    ScratchHost,
    Unit,
    read_unit,
    settings,
    variables,
)
from tests.support.wire_fixtures import free_port

pytestmark = pytest.mark.extended

DIGEST_OF = re.compile(r"`cd DIR && ([^`]*)`")
"""The command of docs/deploy.md for the digest of a model's files on S3."""


def of_wheel(wheel: Path, **changes: Any) -> HostSettings:
    (digest,) = DIGEST_OF.findall((ROOT / "docs/deploy.md").read_text())
    model = EMBEDDED / "target"
    given: dict[str, Any] = {
        "wheel": f"s3://bucket/{wheel.name}",
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "model": "s3://bucket/target",
        "digest": subprocess.check_output(["bash", "-c", digest], cwd=model, text=True).split()[0],
        "flags": {"batch": 2, "grace": 2.0},
        "venv": IMAGE_VENV,
        "port": free_port(),
        "metrics_port": free_port(),
    }
    return settings(**given | changes)


def installed(host: ScratchHost) -> set[str]:
    listed = host.run(f"{IMAGE_VENV}/bin/python", "-m", "pip", "list", "--format=freeze")
    return set(listed.stdout.split())


@contextmanager
def service(host: ScratchHost, unit: Unit) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """The unit's command, run as its user with its environment, and its service manager's
    socket.
    """
    (user,), (directory,), (start,) = (
        unit[name] for name in ("User", "WorkingDirectory", "ExecStart")
    )
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    words = host.command(*become, "env", "-C", directory, *shlex.split(start))
    environment = variables(" ".join(unit["Environment"])) | {"NOTIFY_SOCKET": "/run/notify"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = host.root / "run/notify"
        manager.bind(str(address))
        address.chmod(0o777)
        manager.settimeout(120)
        with subprocess.Popen(words, env=environment, text=True) as process:
            try:
                yield process, manager
            finally:
                process.kill()


def test_a_host_starts_its_target_between_its_timers_and_hides_its_secrets(
    host: ScratchHost, wheel: Path, credentials: Path
) -> None:
    done = host.boot(user_data(of_wheel(wheel)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.calls("systemctl") == [
        "daemon-reload",
        "enable --now outrider-lifetime.timer",
        "enable --now outrider-target.service",
        "enable --now outrider-idle.timer",
    ]
    assert host.calls("shutdown") == []
    assert {f"{name}=={version}" for name, version in PINNED.items()} <= installed(host)
    for name in ("key.pem", "keys.json"):
        for line in (credentials / name).read_text().split():
            assert len(line) < 20 or line not in done.stdout + done.stderr
        seen = host.run("stat", "-c", "%U %G %a", f"/etc/outrider/{name}").stdout
        assert seen == "root outrider 640\n"
    assert host.run("runuser", "-u", "nobody", "--", "ls", "/etc/outrider").returncode != 0
    deleted = "ssm delete-parameters --names /outrider/cert /outrider/key /outrider/keys"
    assert deleted in host.calls("aws")


def test_what_the_unit_starts_serves_only_who_has_the_key_and_drains_on_sigterm(
    host: ScratchHost, wheel: Path, credentials: Path
) -> None:
    of = of_wheel(wheel)
    host.boot(user_data(of))
    units = host.root / "etc/systemd/system"
    with service(host, read_unit(units / "outrider-target.service")) as (process, manager):
        assert manager.recv(1000).decode().startswith("READY=1\n")
        address, authority = f"localhost:{of.port}", str(credentials / "ca.pem")
        with pytest.raises(outrider.OutriderError, match="token"):
            outrider.connect(address, tls_ca=authority, draft=False)
        token = str(credentials / "token")
        asked: dict[str, Any] = {"max_tokens": 16, "seed": 1, "temperature": 0.7}
        with outrider.connect(address, tls_ca=authority, token_file=token, draft=False) as engine:
            served = engine.generate("def main():", **asked)
        with outrider.serve(port=0) as here, outrider.connect(here.address, draft=False) as engine:
            assert served.text == engine.generate("def main():", **asked).text
        (condition,) = read_unit(units / "outrider-idle.service")["ExecCondition"]
        for name, value in variables((host.root / "etc/outrider/host.env").read_text()).items():
            condition = condition.replace(f"${{{name}}}", value)
        (host.root / "run/outrider").mkdir(exist_ok=True)
        looked = host.run(*shlex.split(condition.lstrip("+-@:!")))
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
        done = host.boot(user_data(of), HF_ENDPOINT=address)
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr
    assert "ssm delete-parameters --names /outrider/hub_token" in host.calls("aws")
    unit = read_unit(host.root / "etc/systemd/system/outrider-target.service")
    find = f"from inference.model.checkpoints.hub import find_model as f; print(f({name!r}).name)"
    environment = variables(" ".join(unit["Environment"]))
    found = host.run(f"{IMAGE_VENV}/bin/python", "-c", find, **environment)
    assert found.stdout == f"{COMMIT}\n", found.stderr


def test_a_changed_wheel_is_not_installed_and_the_host_ends(host: ScratchHost, wheel: Path) -> None:
    before = installed(host)
    done = host.boot(user_data(of_wheel(wheel, wheel_sha256="0" * 64, lifetime_hours=2.0)))
    assert done.returncode != 0
    assert "FAILED at: Outrider" in done.stdout
    assert installed(host) == before
    assert host.calls("shutdown") == ["-P +30 Outrider was not set up"]
    timer = host.root / "etc/systemd/system/outrider-lifetime.timer.d/lifetime.conf"
    assert "OnBootSec=120min" in timer.read_text()


def test_a_model_on_s3_that_was_changed_is_not_served(host: ScratchHost, wheel: Path) -> None:
    changed = host.root / "srv/aws/s3:/bucket/target/config.json"
    changed.write_text(changed.read_text() + " ")
    assert "FAILED at: model" in host.boot(user_data(of_wheel(wheel))).stdout
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
    done = host.boot(user_data(of_wheel(wheel)), PIP_FIND_LINKS="/srv")
    assert "FAILED at: Outrider" in done.stdout
    assert "torch" in done.stderr
    assert installed(host) == before


def test_an_artefact_is_pulled_by_its_digest_and_no_other_is_served(
    host: ScratchHost, wheel: Path, tmp_path: Path
) -> None:
    """Setting up again goes on where it failed."""
    manifest = build(tmp_path / "artefact")
    push(tmp_path / "artefact", open_store(str(host.root / "srv/store")), print)
    served = {"model": None, "artifact_store": "/srv/store"}
    wrong = host.boot(user_data(of_wheel(wheel, **served, digest="0" * 64)))
    assert "FAILED at: model" in wrong.stdout
    assert "enable --now outrider-target.service" not in host.calls("systemctl")
    right = host.boot(user_data(of_wheel(wheel, **served, digest=manifest.digest())))
    assert right.returncode == 0, right.stdout + right.stderr
    place = host.root / "var/lib/outrider/artifact"
    check_files(place, read_manifest(place))
    assert read_manifest(place).digest() == manifest.digest()


def job(
    host: ScratchHost, wheel: Path, *commands: tuple[str, ...], **changes: Any
) -> tuple[int, dict[str, str], str]:
    """Run a job's script; its exit code, last report, and log in the bucket."""
    wheel_of = of_wheel(wheel)
    given = {"wheel": wheel_of.wheel, "wheel_sha256": wheel_of.wheel_sha256, "venv": IMAGE_VENV}
    hub = {"HF_ENDPOINT": changes.pop("hub", "")}
    done = host.boot(job_script(replace(JOB, commands=commands, **given | changes)), **hub)
    reports = host.root / "srv/aws/s3:/bucket/builds-of/build-1"
    log = (reports / "log.txt").read_text()
    return done.returncode, json.loads((reports / "status.json").read_text()), log


def test_what_a_job_builds_with_a_token_is_pulled_by_its_digest_and_no_log_shows_the_token(
    host: ScratchHost, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    parameter = "/outrider/build-1/hub_token"
    host.put_object(f"ssm/{parameter}", tmp_path / "token")
    small = ("--target=cpu", "--rows=1", "--sequence_length=64", "--max_tree_nodes=2")
    build = ("compile", f"--model=acme/gated@{COMMIT}", *small, f"--out={ARTEFACT}")
    with hub_server({"acme/gated": EMBEDDED / "target"}, gated="acme/gated") as address:
        command = (*build, "--push=/srv/store")
        code, status, log = job(host, wheel, command, hub=address, hub_token=parameter)
    assert (code, status["state"]) == (0, "built"), log
    assert TOKEN not in log
    assert f"ssm delete-parameters --names {parameter}" in host.calls("aws")
    store = open_store(str(host.root / "srv/store"))
    manifest = pull(store, status["digest"], tmp_path / "out", print)
    assert (manifest.model, manifest.target, manifest.rows) == ("acme/gated", "cpu", 1)
    assert host.calls("shutdown") == ["-P +360 the end of the lifetime of this job", "-P now"]


def test_a_jobs_failed_command_is_reported_and_the_next_runs_and_its_results_reach_the_bucket(
    host: ScratchHost, wheel: Path
) -> None:
    keep = f"import pathlib; p = pathlib.Path('{RESULTS}/a'); p.mkdir(parents=True); "
    write = "(p / 'report.md').write_text('done'); (p / 'artefact').mkdir()"
    failing = ("compile", "--target=cpu", "--sequence_length=1")
    code, status, log = job(host, wheel, failing, ("timeit", "-n1", "-r1", keep + write))
    assert (code, status["state"], status["step"]) == (2, "failed", "commands")
    assert status["digest"] == ""
    assert "--sequence_length 1: a whole number of 2 or more is needed" in log
    assert "FAILED at: commands (exit code 2)" in log
    copied = "s3 cp --only-show-errors --recursive --exclude=*/artefact/* --include="
    (copy,) = [call for call in host.calls("aws") if call.startswith(copied)]
    assert copy.endswith(f" {RESULTS} s3://bucket/builds-of/build-1/results")
    assert host.calls("shutdown")[-1] == "-P now"
