"""User data as text: what the scripts hold, and what a linter says of them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.host.user_data import MAX_BYTES, HostSettings, job_script, user_data
from outrider.options.roles import ROLES
from tests.support.refusals import assert_refused
from tests.support.repository import tool
from tests.support.scratch_host import DIGEST, JOB, settings

EVERYTHING = settings(
    artifact_store="s3://bucket/artefacts",
    digest=DIGEST,
    flags={"batch": 8, "usd_per_hour": 1.34, "log": "json", "share_prefixes": True},
    host="0.0.0.0",
    venv="/opt/aws_neuronx_venv_pytorch_2_9",
)
SMALLEST = settings()
SCRIPTS = {
    "everything": user_data(EVERYTHING),
    "smallest": user_data(SMALLEST),
    "job": job_script(replace(JOB, venv="/opt/v")),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_shellcheck_finds_nothing(script: str, tmp_path: Path) -> None:
    (tmp_path / "script.sh").write_text(script)
    checked = subprocess.run([tool("shellcheck"), tmp_path / "script.sh"], capture_output=True)
    assert checked.stdout == b""


def test_ec2_takes_its_length_and_cloud_init_its_first_line() -> None:
    script = SCRIPTS["everything"]
    assert script.startswith("#!/bin/bash\n")
    assert len(script.encode()) < 0.75 * MAX_BYTES
    assert_refused(lambda: user_data(settings(flags={"model_name": "x" * MAX_BYTES})), ["16384"])


def test_no_command_is_traced_so_no_secret_is_shown() -> None:
    words = SCRIPTS["everything"].split()
    assert not {"-x", "xtrace", "-eux", "--debug"} & set(words)


@pytest.mark.parametrize("of", [EVERYTHING, SMALLEST], ids=["everything", "smallest"])
def test_the_targets_options_are_taken_by_its_role(of: HostSettings) -> None:
    before_setup = user_data(of).partition("\n# Installs Outrider")[0]  # nothing of it acts
    command = ["bash", "-c", f"{before_setup}\ntarget_options"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    read = yaml.safe_load(printed)
    assert read == of.target_options
    assert ROLES[read["role"]](**read).model_dump()["tls_key"] == "/etc/outrider/key.pem"


def test_the_end_of_a_jobs_lifetime_is_armed_before_anything_is_installed() -> None:
    script = job_script(replace(JOB, lifetime_hours=1.5))
    assert "lifetime_minutes=90\n" in script
    assert script.index('shutdown -P "+$lifetime_minutes"') < script.index("\ninstall_tools\n")


def test_a_value_and_a_word_of_a_command_stay_one_word_of_the_shell() -> None:
    words = ("--flag=-O2 --x", "--model=$(reboot)")
    script = job_script(replace(JOB, commands=(("compile", *words),), reports="s3://b/; reboot"))
    assert "-m compile '--flag=-O2 --x' '--model=$(reboot)' || failed=$?\n" in script
    assert "\nreports='s3://b/; reboot'\n" in script
