"""The SkyPilot task has the fields that SkyPilot's own schema allows, and its commands are ours."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from compile.compile_options import parse as parse_compile
from deploy.instance_kind import NEURON_VENV
from outrider.options.parsing import parse
from outrider.options.roles import TargetRole
from tests.support.repository import ROOT


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Recovery(Strict):
    """`job_recovery` of sky/utils/schemas.py; strategies of sky/jobs/recovery_strategy.py."""

    strategy: Literal["EAGER_NEXT_REGION", "FAILOVER"]
    max_restarts_on_errors: Annotated[int, Field(ge=0)]


class Resources(Strict):
    infra: Annotated[str, Field(pattern="^aws(/[^/]+){0,2}$")]
    accelerators: Annotated[str, Field(pattern=r"^(Trainium2?|Inferentia2):(1|16)$")]
    use_spot: bool
    job_recovery: Recovery
    disk_size: int
    ports: int


class Task(Strict):
    """The part of SkyPilot's task that ours uses. An env without a value is asked for."""

    name: str
    workdir: str
    resources: Resources
    envs: dict[str, str | None]
    file_mounts: dict[str, str]
    setup: str
    run: str


TASK = Task.model_validate(
    yaml.safe_load((ROOT / "deploy/skypilot/target.yaml").read_text(encoding="utf-8"))
)


def test_it_recovers_on_spot_with_one_trainium_device() -> None:
    assert TASK.resources.use_spot
    assert TASK.resources.accelerators == "Trainium:1"


def test_its_commands_are_understood_and_its_port_is_the_one_that_is_open() -> None:
    venv, pulls, serves = TASK.run.strip().splitlines()
    assert venv == f". {NEURON_VENV}/bin/activate" == TASK.setup.splitlines()[0]
    words = [word.replace("$DIGEST", "0" * 64) for word in shlex.split(pulls)]
    pulled = parse_compile(words[3:])
    target = parse(shlex.split(serves)[1:])
    assert isinstance(target, TargetRole)
    assert target.artifact == pulled.out
    assert target.port == TASK.resources.ports
    assert target.host == "0.0.0.0"
    assert {target.tls_cert, target.tls_key, target.keys_file} == {
        f"~/secrets/{name}" for name in ("cert.pem", "key.pem", "keys.json")
    }


def test_what_its_commands_need_is_given_by_the_user() -> None:
    assert {name for name, value in TASK.envs.items() if value is None} == {"STORE", "DIGEST"}
    assert all(f"${name}" in TASK.run for name in TASK.envs)
