"""The SkyPilot task has the fields that SkyPilot's own schema allows, and its commands are ours."""

from __future__ import annotations

import shlex

import yaml

from compile.compile_options import parse as parse_compile
from deploy.instance_kind import NEURON_VENV
from outrider.options.parsing import parse
from outrider.options.roles import TargetRole
from tests.support.repository import ROOT

TASK = yaml.safe_load((ROOT / "deploy/skypilot/target.yaml").read_text(encoding="utf-8"))
RESOURCES = TASK["resources"]


def test_it_has_the_fields_of_skypilots_schema() -> None:
    """These are the part of sky/utils/schemas.py that ours uses."""
    assert TASK.keys() == {"name", "workdir", "resources", "envs", "file_mounts", "setup", "run"}
    machine = {"infra", "accelerators", "use_spot", "job_recovery", "disk_size", "ports"}
    assert RESOURCES.keys() == machine
    assert RESOURCES["job_recovery"].keys() == {"strategy", "max_restarts_on_errors"}
    assert RESOURCES["job_recovery"]["strategy"] in ("EAGER_NEXT_REGION", "FAILOVER")
    assert RESOURCES["infra"].startswith("aws")


def test_it_recovers_on_spot_with_one_trainium_device() -> None:
    assert RESOURCES["use_spot"]
    assert RESOURCES["accelerators"] == "Trainium:1"


def test_its_commands_are_understood_and_its_port_is_the_one_that_is_open() -> None:
    venv, pulls, serves = TASK["run"].strip().splitlines()
    assert venv == f". {NEURON_VENV}/bin/activate" == TASK["setup"].splitlines()[0]
    words = [word.replace("$DIGEST", "0" * 64) for word in shlex.split(pulls)]
    pulled = parse_compile(words[3:])
    target = parse(shlex.split(serves)[1:])
    assert isinstance(target, TargetRole)
    assert target.artifact == pulled.out
    assert target.port == RESOURCES["ports"]
    assert target.host == "0.0.0.0"
    assert {target.tls_cert, target.tls_key, target.keys_file} == {
        f"~/secrets/{name}" for name in ("cert.pem", "key.pem", "keys.json")
    }


def test_what_its_commands_need_is_given_by_the_user() -> None:
    assert {name for name, value in TASK["envs"].items() if value is None} == {"STORE", "DIGEST"}
    assert all(f"${name}" in TASK["run"] for name in TASK["envs"])
