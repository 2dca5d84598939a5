"""User data as text: what is refused, what the script holds, and what a linter says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.host.user_data import (
    MOST_BYTES,
    HostSecrets,
    HostSettings,
    target_options,
    user_data,
)
from outrider.options.roles import ROLES
from tests.support.host_settings import DIGEST, settings
from tests.support.refusals import assert_refused
from tests.support.repository import tool

ARTIFACT = {"artifact_store": "s3://bucket/artefacts", "digest": DIGEST}
EVERYTHING = settings(
    **ARTIFACT,
    flags={"batch": 8, "usd_per_hour": 1.34, "log": "json", "share_prefixes": True},
    host="0.0.0.0",
    venv="/opt/aws_neuronx_venv_pytorch_2_9",
)
SMALLEST = settings()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"region": "Oregon"}, "no region"),
        ({"wheel": "https://example.com/outrider.whl"}, "s3://BUCKET"),
        ({"wheel": "s3://bucket/$(reboot).whl"}, "s3://BUCKET"),
        ({"wheel_sha256": "12"}, "64 hexadecimal digits"),
        ({"artifact_store": "s3://bucket/artefacts"}, "digest belong together"),
        ({"model": "s3://bucket/model"}, "digest belong together"),
        ({"model": "some/model", "digest": DIGEST}, "digest belong together"),
        ({**ARTIFACT, "model": "some/model"}, "an artefact or a model"),
        ({"model": "s3://Bucket/x y", "digest": DIGEST}, "hub name"),
        ({"flags": {"--batch": 4}}, "without its dashes"),
        ({"flags": {"tls_key": "k"}}, "--tls_key is decided"),
        ({"port": 0}, "1 to 65535"),
        ({"port": 9100}, "metrics"),
        ({"idle_minutes": 0}, "idle time of 0"),
        ({"lifetime_hours": float("inf")}, "lifetime of inf"),
        ({"lifetime_hours": 0}, "lifetime of 0"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_line(changes: dict[str, Any], said: str) -> None:
    assert_refused(lambda: settings(**changes), [said])


def test_a_parameters_name_cannot_carry_a_command() -> None:
    key = "/outrider/key; reboot"
    assert_refused(lambda: HostSecrets("/outrider/cert", key, "/outrider/keys"), ["; reboot"])


@pytest.mark.parametrize("of", [EVERYTHING, SMALLEST], ids=["everything", "smallest"])
def test_shellcheck_finds_nothing(of: HostSettings, tmp_path: Path) -> None:
    script = tmp_path / "user-data.sh"
    script.write_text(user_data(of))
    checked = subprocess.run([tool("shellcheck"), script], capture_output=True, text=True)
    assert checked.stdout == ""


def test_ec2_takes_its_length_and_cloud_init_its_first_line() -> None:
    script = user_data(EVERYTHING)
    assert script.startswith("#!/bin/bash\n")
    assert len(script.encode()) < 0.75 * MOST_BYTES
    assert_refused(lambda: user_data(settings(flags={"model_name": "x" * MOST_BYTES})), ["16384"])


def test_no_command_is_traced_so_no_secret_is_shown() -> None:
    words = user_data(EVERYTHING).split()
    assert not {"-x", "xtrace", "-eux", "--debug"} & set(words)


@pytest.mark.parametrize("of", [EVERYTHING, SMALLEST], ids=["everything", "smallest"])
def test_the_targets_options_are_taken_by_its_role(of: HostSettings) -> None:
    before_setup = user_data(of).partition("\n# Installs Outrider")[0]  # nothing of it acts
    command = ["bash", "-c", f"{before_setup}\ntarget_options"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    read = yaml.safe_load(printed)
    assert read == dict(target_options(of))
    assert ROLES[read["role"]](**read).model_dump()["tls_key"] == "/etc/outrider/key.pem"
