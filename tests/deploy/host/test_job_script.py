"""The script of a build's host, run for real on a scratch host: it compiles, pushes and reports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compile.store import open_store, pull
from deploy.host.user_data import ARTEFACT, RESULTS, job_script
from outrider.models.found_model import EMBEDDED
from tests.support.cloud import COMMIT, TOKEN, hub_server
from tests.support.scratch_host import IMAGE_VENV, JOB, ScratchHost, scratch_host

pytestmark = pytest.mark.extended

SMALL = ("--target=cpu", "--rows=1", "--sequence_length=64", "--max_tree_nodes=2")
"""A small build of the embedded target."""


@pytest.fixture
def host(wheel: Path) -> Iterator[ScratchHost]:
    with scratch_host() as made:
        made.make_image_venv({})
        made.put_object(f"s3://bucket/{wheel.name}", wheel)
        yield made


def run(
    host: ScratchHost,
    wheel: Path,
    *arguments: str,
    hub: str = "",
    commands: tuple[tuple[str, ...], ...] = (),
) -> tuple[int, dict[str, str], str]:
    """Run the script, as cloud-init does; its exit code, last report, and log in the bucket.

    hub: address of a stand-in whose token the script takes
    commands: in place of a build with the arguments
    """
    settings = replace(
        JOB,
        wheel=f"s3://bucket/{wheel.name}",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        commands=commands or (("compile", *arguments, f"--out={ARTEFACT}", "--push=/srv/store"),),
        venv=IMAGE_VENV,
        hub_token="/outrider/build-1/hub_token" if hub else None,
    )
    host.write("/var/lib/cloud/user-data", job_script(settings), 0o700)
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    done = host.run("/var/lib/cloud/user-data", **offline, HF_ENDPOINT=hub)
    reports = host.root / "srv/aws/s3:/bucket/builds-of/build-1"
    log = (reports / "log.txt").read_text()
    return done.returncode, json.loads((reports / "status.json").read_text()), log


def test_what_is_built_with_a_token_can_be_pulled_by_its_digest_and_no_log_shows_the_token(
    host: ScratchHost, wheel: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    host.put_object("ssm//outrider/build-1/hub_token", tmp_path / "token")
    with hub_server({"acme/gated": EMBEDDED / "target"}, gated="acme/gated") as address:
        model = f"--model=acme/gated@{COMMIT}"
        code, status, log = run(host, wheel, model, *SMALL, hub=address)
    assert (code, status["state"]) == (0, "built"), log
    assert TOKEN not in log
    assert "ssm delete-parameters --names /outrider/build-1/hub_token" in host.calls("aws")
    store = open_store(str(host.root / "srv/store"))
    manifest = pull(store, status["digest"], tmp_path / "out", print)
    assert (manifest.model, manifest.target, manifest.rows) == ("acme/gated", "cpu", 1)
    assert host.calls("shutdown") == ["-P +360 the end of the lifetime of this job", "-P now"]


def test_a_failed_command_is_reported_and_the_next_one_runs_and_its_results_reach_the_bucket(
    host: ScratchHost, wheel: Path
) -> None:
    keep = f"import pathlib; p = pathlib.Path('{RESULTS}/a'); p.mkdir(parents=True); "
    write = "(p / 'report.md').write_text('done'); (p / 'artefact').mkdir()"
    failing = ("compile", "--target=cpu", "--sequence_length=1")
    commands = (failing, ("timeit", "-n1", "-r1", keep + write))
    code, status, log = run(host, wheel, commands=commands)
    assert (code, status["state"], status["step"]) == (2, "failed", "commands")
    assert status["digest"] == ""
    assert "--sequence_length 1: a whole number of 2 or more is needed" in log
    assert "FAILED at: commands (exit code 2)" in log
    copied = "s3 cp --only-show-errors --recursive --exclude=*/artefact/* --include="
    (copy,) = [call for call in host.calls("aws") if call.startswith(copied)]
    assert copy.endswith(f" {RESULTS} s3://bucket/builds-of/build-1/results")
    assert host.calls("shutdown")[-1] == "-P now"
