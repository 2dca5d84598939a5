"""A build on an instance, against a stand-in of AWS: what is started, and that nothing is left."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

from compile.aws import Aws
from compile.compile_options import parse
from compile.store import open_store, push
from deploy.cloud_build import build_on, host_arguments, plan
from deploy.commands.prove import ProofOptions, words_on_host
from deploy.host.user_data import RESULTS
from deploy.instance import NEURON_IMAGE, InstanceKind
from deploy.job import cost
from deploy.stack import StackState
from inference.files.artifact import write_manifest
from outrider.measure.commands import parse as parse_measuring
from tests.support.artifacts import build, trn1_manifest
from tests.support.cloud import COMMIT, REGION, TOKEN, AwsAccount, hub_server, refused, use_hub
from tests.support.commands import Run
from tests.support.refusals import assert_refused
from tests.support.repository import ROOT


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
        (["--target", "cpu", "--model", "."], [". lies"]),
        (["--target", "cpu", "--features", "."], [". lies"]),
    ],
)
@pytest.mark.usefixtures("calls")
def test_what_an_instance_cannot_be_asked_for_is_refused(
    words: list[str], shown: list[str]
) -> None:
    assert_refused(lambda: build_on(parse(["--on", "c7i.2xlarge", *words])), shown)


def test_a_cost_that_aws_does_not_tell_hides_no_result(calls: AwsAccount) -> None:
    calls.faults["DescribeInstances"] = refused("InternalError")
    state = StackState("arn", "DELETE_COMPLETE", {}, {"InstanceId": "i-1"})
    told = cost(Aws(REGION), state)
    assert told.startswith("not known")
    assert "InternalError" in told


@pytest.fixture
def words(installed: list[str]) -> list[str]:
    """Words of a command that builds on an instance."""
    on = ["compile", "--on", "c7i.2xlarge", *installed]
    return [*on, "--target", "cpu", "--dtype", "bfloat16"]


def on_host(aws: AwsAccount, work: Callable[[str, str], None]) -> None:
    """What the next instance does before its state is asked for the first time, with the bucket and
    the prefix that are its own.
    """

    def reading(account: AwsAccount, asked: dict[str, Any]) -> None:
        del account.faults["GetObject"]
        assert len(account.instances) == len(account.stacks) == 1
        work(asked["Bucket"], asked["Key"].removesuffix("/status.json"))

    aws.faults["GetObject"] = reading


def report(bucket: str, prefix: str, state: str, digest: str = "") -> None:
    status = json.dumps({"state": state, "step": "build", "digest": digest}).encode()
    files = {"status.json": status, "log.txt": b"one\nthe compiler's last words\n"}
    for name, content in files.items():
        boto3.client("s3").put_object(Bucket=bucket, Key=f"{prefix}/{name}", Body=content)


@pytest.mark.extended
def test_an_artefact_that_was_built_there_is_brought_here_and_the_instance_is_gone(
    aws: AwsAccount, words: list[str], tmp_path: Path, run: Run
) -> None:
    def work(bucket: str, prefix: str) -> None:
        push(tmp_path / "built", open_store(f"s3://{bucket}/artefacts"), print)
        report(bucket, prefix, "built", manifest.digest())

    manifest = build(tmp_path / "built")
    on_host(aws, work)
    done = run(*words, "--out", tmp_path / "out")
    assert done.code == 0, done
    plan = ("c7i.2xlarge, on-demand", "GiB", "--dtype=bfloat16", "removed after the build")
    for part in (*plan, f"digest {manifest.digest()}"):
        assert part in done.out
    assert "cost of the build: not known: no price for c7i.2xlarge" in done.err
    built, brought = (tmp_path / name / "manifest.json" for name in ("built", "out"))
    assert brought.read_bytes() == built.read_bytes()
    assert (aws.instances, aws.stacks) == ([], [])


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Qwen's models for everybody and acme/gated for who has TOKEN, all of the size of an 8B."""
    names = ["Qwen/Qwen2.5-7B-Instruct", "acme/gated"]
    shape = ROOT / "docs/shapes/llama-3.1-8b"
    with hub_server(dict.fromkeys(names, shape), gated="acme/gated") as address:
        use_hub(address, tmp_path, monkeypatch)
        yield


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
    aws: AwsAccount, words: list[str], tmp_path: Path, run: Run
) -> None:
    write_manifest(tmp_path, manifest := trn1_manifest())
    digest, bucket = manifest.digest(), ""

    def work(host_bucket: str, prefix: str) -> None:
        nonlocal bucket
        bucket, key = host_bucket, f"artefacts/manifests/{digest}.json"
        boto3.client("s3").upload_file(str(tmp_path / "manifest.json"), bucket, key)
        report(bucket, prefix, "built", digest)

    wheel = words[words.index("--wheel") :][:2]
    on_host(aws, work)
    commands = cloud_commands()
    assert {command[0] for command in commands} >= {"compile", "deploy"}
    for command in commands:
        command = [{"HEX": digest}.get(word, word).replace("BUCKET", bucket) for word in command]
        if command[0] not in ("compile", "deploy"):
            continue  # a target that does not run here is not talked to
        if command[:2] == ["deploy", "up"]:
            command.append("--yes")
        if command[0] == "compile" or command[1] == "up":
            command += wheel
        done = run(*command)
        assert done.code == 0, done
        assert "--dry_run" not in command or aws.stacks == []
    assert (aws.instances, aws.stacks) == ([], [])


@pytest.mark.extended
@pytest.mark.usefixtures("hub")
def test_a_failed_build_of_a_gated_model_withdraws_the_token_and_leaves_nothing(
    aws: AwsAccount, words: list[str], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    def work(bucket: str, prefix: str) -> None:
        (name,) = names
        row = boto3.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]
        assert (row["Type"], row["Value"]) == ("SecureString", TOKEN)
        stack = aws.stacks[0]["StackName"]
        template = boto3.client("cloudformation").get_template(StackName=stack)["TemplateBody"]
        assert f"acme/gated@{COMMIT}" in str(template)
        assert TOKEN not in str(template)
        report(bucket, prefix, "failed")

    names = list[str]()
    aws.faults["PutParameter"] = lambda _account, asked: names.append(asked["Name"])
    words = [*words, "--sequence_length", "256", "--model", "acme/gated", "--on", "r7i.8xlarge"]
    run(*words).assert_failed("acme/gated is gated")
    assert not {"CreateStack", "PutParameter"} & {*aws.calls}
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    on_host(aws, work)
    done = run(*words)
    done.assert_failed("the build failed")
    assert TOKEN not in done.out + done.err
    assert "the compiler's last words" in done.err
    assert not boto3.client("ssm").get_parameters(Names=names)["Parameters"]
    assert (aws.instances, aws.stacks) == ([], [])


@pytest.mark.extended
def test_an_interrupted_build_leaves_nothing_that_is_billed(
    aws: AwsAccount, words: list[str], run: Run
) -> None:
    def interrupt(*_: str) -> None:
        raise KeyboardInterrupt

    on_host(aws, interrupt)
    assert run(*words).code == 130
    assert (aws.instances, aws.stacks) == ([], [])


@pytest.mark.extended
@pytest.mark.usefixtures("aws")
@pytest.mark.parametrize(
    ("flags", "store", "graphs"),
    [
        ([], "artefacts/", "graphs/"),
        (["--push", "s3://own/a/b", "--graph_store", "s3://own/c"], "a/b/", "c/"),
        (["--push", "s3://own"], "", "graphs/"),
    ],
)
def test_the_host_of_a_neuron_build_has_its_image_and_may_write_to_its_stores(
    flags: list[str], store: str, graphs: str
) -> None:
    words = ["--on", "r7i.2xlarge", "--target", "trn1", "--dry_run", *flags]
    host = plan(Aws(REGION), parse(words))[0].host
    assert host.parameters == {"Purpose": "build", "Store": store, "Graphs": graphs}
    assert host.image == NEURON_IMAGE, "whatever the instance is"
    assert host.disk_gib == 250
    for more, shown in (
        (["--graph_store", "s3://other/g"], ["--graph_store s3://other/g"]),
        (["--on", "t3.small"], ["2 GiB", "r7i.xlarge"]),
    ):
        assert_refused(partial(plan, Aws(REGION), parse([*words, *more])), shown)


@pytest.mark.parametrize(
    ("draft", "instance", "model", "words"),
    [
        (None, "trn1.2xlarge", "acme/m@1", "--target_model=acme/m@1 --draft=copy --device=neuron"),
        (None, "c7i.2xlarge", None, "--device=cpu"),
        ("d", "g6.xlarge", "m@1", "--target_model=m@1 --draft_model=d --device=cuda"),
    ],
)
def test_a_proof_on_an_instance_is_a_command_that_the_instance_understands(
    draft: str | None, instance: str, model: str | None, words: str
) -> None:
    options, kind = ProofOptions(draft_model=draft), InstanceKind(instance)
    outrider, verb, *given = words_on_host(options, kind, model, "float32")
    words += f" --dtype=float32 --out={RESULTS}/float32"
    assert (outrider, verb, " ".join(given)) == ("outrider", "prove", words)
    parse_measuring("prove", given)


@pytest.mark.extended
@pytest.mark.parametrize("equal", [True, False])
def test_a_proof_is_brought_here_and_its_instance_is_gone(
    equal: bool, aws: AwsAccount, installed: list[str], tmp_path: Path, run: Run
) -> None:
    def work(bucket: str, prefix: str) -> None:
        for name, text in (made | hostile).items():
            key = f"{prefix}/results/{name}"
            boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=text.encode())
        report(bucket, prefix, "built")

    made = {
        f"{precision}/{name}": content
        for precision in ("bfloat16", "float32")[: 2 if equal else 1]
        for name, content in (("report.json", '{"equal": true}'), ("report.md", "# m on cpu"))
    }
    hostile = dict.fromkeys(("../outside", f"{tmp_path}/outside"), "")
    on_host(aws, work)
    words = ["--instance", "c7i.2xlarge", "--yes", *installed, "--out", tmp_path / "out"]
    done = run("deploy", "prove", *words)
    assert done.code == (0 if equal else 1), done
    assert "# m on cpu" in done.out
    assert not (tmp_path / "outside").exists()
    assert "cost of the proof: not known" in done.err
    assert ("float32: not proved" in done.out) is not equal
    brought = (tmp_path / "out").glob("*/*")
    assert {path.relative_to(tmp_path / "out").as_posix() for path in brought} == set(made)
    assert (aws.instances, aws.stacks) == ([], [])
