"""A build on an instance, against a stand-in of AWS: what is started, and that nothing is left."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from compile.aws import Aws
from compile.compile_options import CompileOptions, parse
from compile.store import open_store, push
from deploy.cloud_build import check, host_arguments, pinned, plan
from deploy.commands.prove import ProofOptions, words_on_host
from deploy.host.user_data import RESULTS
from deploy.instance import NEURON_IMAGE, InstanceKind
from deploy.job import cost
from deploy.stack import StackState
from inference.files.artifact import write_manifest
from outrider.measure.commands import parse as parse_measuring
from tests.support.artifacts import build, trn1_manifest
from tests.support.cloud import COMMIT, REGION, TOKEN, AwsServer, hub_server
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu",
    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 152064,
}  # fmt: skip
"""A config.json of the size of Qwen2.5-7B."""


def test_the_instance_runs_the_users_own_command_which_it_understands_and_pushes() -> None:
    words = ["--target", "trn1", "--tp_degree", "2", "--flag=-O2", "--quick"]
    options = parse(["--on", "c7i.2xlarge", *words, "--out", "here", "--spot"])
    given = host_arguments(options, "s3://bucket/artefacts", "s3://bucket/graphs")
    assert given == (
        "--target=trn1",
        "--tensor_parallel=2",
        "--flag=-O2",
        "--quick",
        "--graph_store=s3://bucket/graphs",
        "--out=/var/lib/outrider-job/artefact",
        "--push=s3://bucket/artefacts",
    )
    there = parse(list(given))
    assert (there.target, there.tensor_parallel, there.flag) == ("trn1", 2, ("-O2",))
    assert there.on is None


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--target", "cpu", "--push", "/store"], ["--push /store", "s3://"]),
        (["--target", "trn2"], ["trn2", "--image"]),
        (["--pull", "s3://b/a", "--digest", "0" * 64, "--out", "d"], ["--target", "--pull"]),
    ],
)
def test_what_an_instance_cannot_be_asked_for_is_refused(
    words: list[str], shown: list[str]
) -> None:
    assert_refused(lambda: check(parse(["--on", "c7i.2xlarge", *words])), shown)


@pytest.mark.parametrize("flags", [{"model": "."}, {"features": "."}])
def test_a_model_that_lies_here_is_refused(flags: dict[str, Any]) -> None:
    assert_refused(lambda: pinned(CompileOptions(target="cpu", **flags)), [". lies"])


@pytest.mark.usefixtures("aws_keys")
def test_a_cost_that_aws_does_not_tell_hides_no_result() -> None:
    aws, state = Aws(REGION), StackState("arn", "DELETE_COMPLETE", {}, {"InstanceId": "i-1"})
    with Stubber(aws.client("ec2")) as refusing:
        refusing.add_client_error("describe_instances", "InternalError", "try again")
        said = cost(aws, state)
    assert said.startswith("not known")
    assert "try again" in said


@pytest.fixture
def words(installed: list[str]) -> list[str]:
    """Words of a command that builds on an instance."""
    on = ["compile", "--on", "c7i.2xlarge", *installed]
    return [*on, "--target", "cpu", "--dtype", "bfloat16"]


def begin(aws: AwsServer, words: list[str]) -> subprocess.Popen[str]:
    return aws.begin("-m", "outrider", *words)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a command with this exit code has said."""
    told = process.communicate(timeout=200)[0]
    assert process.returncode == code, told
    return told


def started(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The stack's and the bucket's name, when the instance of the build runs."""
    cloud, ends = boto3.client("cloudformation", region_name=REGION), time.monotonic() + 200
    while time.monotonic() < ends:
        for stack in cloud.describe_stacks()["Stacks"]:
            if stack["StackStatus"] == "CREATE_COMPLETE":
                given = {one["ParameterKey"]: one["ParameterValue"] for one in stack["Parameters"]}
                return stack["StackName"], given["Bucket"]
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.2)
    raise AssertionError("no stack was made")


def report(stack: str, bucket: str, state: str, digest: str = "") -> None:
    """What the instance would put into the bucket."""
    prefix = f"builds-of/{stack.removeprefix('outrider-')}"
    status = json.dumps({"state": state, "step": "build", "digest": digest})
    s3 = boto3.client("s3", region_name=REGION)
    s3.put_object(Bucket=bucket, Key=f"{prefix}/log.txt", Body=b"one\nthe compiler's last words\n")
    s3.put_object(Bucket=bucket, Key=f"{prefix}/status.json", Body=status.encode())


def left() -> list[str]:
    """Instances that run, and stacks."""
    alive = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    found = boto3.client("ec2", region_name=REGION).describe_instances(Filters=[alive])
    stacks = boto3.client("cloudformation", region_name=REGION).describe_stacks()["Stacks"]
    return [
        *(row["InstanceId"] for group in found["Reservations"] for row in group["Instances"]),
        *(f"{stack['StackName']} {stack['StackStatus']}" for stack in stacks),
    ]


@pytest.mark.extended
def test_an_artefact_that_was_built_there_is_brought_here_and_the_instance_is_gone(
    aws: AwsServer, words: list[str], tmp_path: Path
) -> None:
    built = tmp_path / "built"
    build(built)
    process = begin(aws, [*words, "--out", str(tmp_path / "out")])
    stack, bucket = started(process)
    digest = push(built, open_store(f"s3://{bucket}/artefacts"), print)
    report(stack, bucket, "built", digest)
    told = ended(process)
    plan = ("c7i.2xlarge, on-demand", "GiB", "--dtype=bfloat16", "removed after the build")
    for part in (*plan, f"digest {digest}"):
        assert part in told
    assert "cost of the build: not known: no price for c7i.2xlarge" in told
    assert (tmp_path / "out/manifest.json").read_bytes() == (built / "manifest.json").read_bytes()
    assert left() == []


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub as commands see it: Qwen's models for everybody, acme/gated for who has TOKEN. Yields
    the directory that all of them have.
    """
    shape = tmp_path / "shape"
    shape.mkdir()
    (shape / "config.json").write_text(json.dumps(QWEN))
    names = ["Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", "acme/gated"]
    with hub_server(dict.fromkeys(names, shape), gated="acme/gated") as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield shape


def cloud_commands() -> list[list[str]]:
    """The words after `outrider` of the page's block that builds on an instance, in order."""
    text = (ROOT / "docs/trainium.md").read_text()
    (block,) = [
        block
        for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
        if "outrider compile --on" in block
    ]
    lines = [line for line in block.splitlines() if line.startswith("outrider ")]
    words = [shlex.split(line, comments=True)[1:] for line in lines]
    return [command for command in words if command[0] != "compile" or "--on" in command]


@pytest.mark.extended
@pytest.mark.usefixtures("hub")
def test_the_commands_of_the_page_build_start_and_remove_a_target(
    aws: AwsServer, words: list[str], tmp_path: Path
) -> None:
    wheel = words[words.index("--wheel") :][:2]
    write_manifest(tmp_path, manifest := trn1_manifest())
    digest, bucket = manifest.digest(), ""
    commands = cloud_commands()
    assert {command[0] for command in commands} >= {"compile", "deploy"}
    for command in commands:
        command = [{"HEX": digest}.get(word, word).replace("BUCKET", bucket) for word in command]
        if command[0] == "compile":
            process = begin(aws, [*command, *wheel])
            if "--dry_run" in command:
                ended(process)
                assert left() == []
                continue
            stack, bucket = started(process)
            key = f"artefacts/manifests/{digest}.json"
            s3 = boto3.client("s3", region_name=REGION)
            s3.upload_file(str(tmp_path / "manifest.json"), bucket, key)
            report(stack, bucket, "built", digest)
        elif command[:2] == ["deploy", "up"]:
            process = begin(aws, [*command, *wheel, "--yes"])
        elif command[0] == "deploy":
            process = begin(aws, command)
        else:
            continue  # a target that does not run here is not talked to
        ended(process)
    if left():  # the page leaves its target running
        ended(begin(aws, ["deploy", "down", "demo", "--with_bucket"]))
    assert left() == []


@pytest.mark.extended
@pytest.mark.usefixtures("hub")
def test_a_gated_model_without_a_token_is_refused_before_anything_starts(
    aws: AwsServer, words: list[str]
) -> None:
    told = ended(begin(aws, [*words, "--model", "acme/gated"]), 1)
    assert "acme/gated is gated" in told
    assert not {"CreateStack", "PutParameter"} & set(aws.control()["called"])


@pytest.mark.extended
@pytest.mark.usefixtures("hub")
def test_a_failed_build_of_a_gated_model_withdraws_the_token_and_leaves_nothing(
    aws: AwsServer, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    words[words.index("--dtype") : words.index("--dtype") + 2] = ["--sequence_length", "256"]
    process = begin(aws, [*words, "--model", "acme/gated", "--on", "r7i.8xlarge"])
    stack, bucket = started(process)
    cloud, ssm = boto3.client("cloudformation"), boto3.client("ssm")
    name = f"/outrider/{stack.removeprefix('outrider-')}/hub_token"
    secret = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (secret["Type"], secret["Value"]) == ("SecureString", TOKEN)
    template = str(cloud.get_template(StackName=stack)["TemplateBody"])
    assert f"acme/gated@{COMMIT}" in template
    assert TOKEN not in template
    report(stack, bucket, "failed")
    told = ended(process, 1)
    assert TOKEN not in told
    assert "the compiler's last words" in told
    assert not ssm.get_parameters(Names=[name])["Parameters"]
    assert left() == []


@pytest.mark.extended
def test_an_interrupted_build_leaves_nothing_that_is_billed(
    aws: AwsServer, words: list[str]
) -> None:
    process = begin(aws, words)
    started(process)
    process.send_signal(signal.SIGINT)
    ended(process, 130)
    assert left() == []


@pytest.mark.extended
def test_an_instance_with_too_little_memory_is_refused_and_another_named(aws: AwsServer) -> None:
    options = parse(["--on", "t3.small", "--target", "trn1", "--dry_run"])
    assert_refused(lambda: plan(Aws(REGION), options), ["2 GiB", "r7i.xlarge"])


@pytest.mark.extended
@pytest.mark.parametrize(
    ("flags", "store", "graphs"),
    [
        ([], "artefacts/", "graphs/"),
        (["--push", "s3://own/a/b", "--graph_store", "s3://own/c"], "a/b/", "c/"),
        (["--push", "s3://own"], "", "graphs/"),
    ],
)
def test_the_host_of_a_neuron_build_has_its_image_and_may_write_to_its_stores(
    flags: list[str], store: str, graphs: str, aws: AwsServer
) -> None:
    words = ["--on", "r7i.2xlarge", "--target", "trn1", "--dry_run", *flags]
    host = plan(Aws(REGION), parse(words))[0].host
    assert host.parameters == {"Purpose": "build", "Store": store, "Graphs": graphs}
    assert host.image == NEURON_IMAGE, "whatever the instance is"
    assert host.disk_gib == 250
    other = parse([*words, "--graph_store", "s3://other/g"])
    assert_refused(lambda: plan(Aws(REGION), other), ["--graph_store s3://other/g"])


@pytest.mark.parametrize(
    ("flags", "instance", "model", "words"),
    [
        (
            {},
            "trn1.2xlarge",
            "acme/m@1",
            "--target_model=acme/m@1 --draft=copy --device=neuron",
        ),
        ({}, "c7i.2xlarge", None, "--device=cpu"),
        (
            {"draft_model": "acme/d"},
            "g6.xlarge",
            "acme/m@1",
            "--target_model=acme/m@1 --draft_model=acme/d --device=cuda",
        ),
    ],
)
def test_a_proof_on_an_instance_is_a_command_that_the_instance_understands(
    flags: dict[str, Any], instance: str, model: str | None, words: str
) -> None:
    kind = InstanceKind(instance)
    outrider, verb, *given = words_on_host(ProofOptions(**flags), kind, model, "float32")
    words += f" --dtype=float32 --out={RESULTS}/float32"
    assert (outrider, verb, " ".join(given)) == ("outrider", "prove", words)
    parse_measuring("prove", given)


@pytest.mark.extended
@pytest.mark.parametrize("equal", [True, False])
def test_a_proof_is_brought_here_and_its_instance_is_gone(
    equal: bool, aws: AwsServer, installed: list[str], tmp_path: Path
) -> None:
    flags = [*installed, "--out", str(tmp_path / "out")]
    process = begin(aws, ["deploy", "prove", "--instance", "c7i.2xlarge", "--yes", *flags])
    stack, bucket = started(process)
    s3, results = boto3.client("s3", region_name=REGION), stack.replace("outrider-", "builds-of/")
    made = {
        f"{precision}/{name}": content
        for precision in ("bfloat16", "float32")[: 2 if equal else 1]
        for name, content in (("report.json", '{"equal": true}'), ("report.md", "# m on cpu"))
    }
    hostile = dict.fromkeys(("../outside", f"{tmp_path}/outside"), "")
    for name, text in (made | hostile).items():
        s3.put_object(Bucket=bucket, Key=f"{results}/results/{name}", Body=text.encode())
    report(stack, bucket, "built")
    told = process.communicate(timeout=200)[0]
    assert process.returncode == (0 if equal else 1), told
    assert "# m on cpu" in told
    assert not (tmp_path / "outside").exists()
    assert "cost of the proof: not known" in told
    assert ("float32: not proved" in told) is not equal
    found = (tmp_path / "out").glob("*/*")
    assert {path.relative_to(tmp_path / "out").as_posix() for path in found} == set(made)
    assert left() == []
