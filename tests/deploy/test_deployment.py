"""What a deployment is made of: instance types, images, quotas, the template, what a host serves
and how fast, and what a failed launch means.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from compile.aws import Aws
from compile.compile_options import parse as parse_compile
from compile.plan.report import pass_seconds
from compile.request import find_checkpoint, make_request
from deploy.commands.options import UpOptions
from deploy.ec2 import host_size, with_image
from deploy.host.user_data import MAX_BYTES, PORT
from deploy.instance import NEURON_BASE_IMAGE, NEURON_IMAGE, InstanceKind
from deploy.plan import computed_speed, read_served
from deploy.prices import bundled_prices
from deploy.stack import (
    TEMPLATE,
    LaunchFailure,
    StackState,
    TargetStack,
    Wait,
    read_template,
    template_body,
)
from inference.errors import BadArtifact, InvalidRequest
from inference.files.artifact import write_manifest
from tests.support.artifacts import TRN1, trn1_manifest
from tests.support.clock import Clock
from tests.support.cloud import REGION, AwsAccount
from tests.support.refusals import assert_refused
from tests.support.repository import tool


@pytest.mark.parametrize(
    ("name", "kind", "image"),
    [
        ("trn1.2xlarge", "neuron", NEURON_IMAGE),
        *((name, "neuron", NEURON_IMAGE) for name in ("trn1n.32xlarge", "inf2.xlarge", "trn2.x")),
        ("g6.xlarge", "cuda", "/x86_64/base-oss-nvidia"),
        ("g5g.xlarge", "cuda", "/arm64/base-oss-nvidia"),
        ("p5.48xlarge", "cuda", "/x86_64/base-oss-nvidia"),
        ("c7i.2xlarge", "cpu", "/amd64/hvm"),
        ("c7gn.2xlarge", "cpu", "/arm64/hvm"),
        ("m7i-flex.large", "cpu", "/amd64/hvm"),
    ],
)
def test_an_instance_starts_from_the_image_of_its_device(name: str, kind: str, image: str) -> None:
    assert InstanceKind(name).kind == kind
    assert image in InstanceKind(name).image


def test_the_quota_is_named_as_aws_names_it() -> None:
    assert InstanceKind("trn1.2xlarge").quota("on-demand").code == "L-2C3B7624"
    assert InstanceKind("trn1.2xlarge").quota("spot").name == "All Trn Spot Instance Requests"
    assert "Standard" in InstanceKind("c7i.large").quota("on-demand").name


def test_accelerators_of_aws_need_an_artefact() -> None:
    with pytest.raises(InvalidRequest) as refused:
        UpOptions(instance="trn1.2xlarge", model="some/model")
    _, command, _ = str(refused.value).split("`")
    options = parse_compile(command.removeprefix("outrider compile ").split())
    assert (options.model, options.target, options.tensor_parallel) == ("some/model", "trn1", 2)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"instance": "trn1.2xlarge", "artifact": "s3://bkt/p"}, ["s3://bkt/p", "--digest"]),
        ({"model": "s3://models/qwen"}, ["s3://models/qwen", "--digest"]),
        ({"model": "some/model", "digest": "0" * 64}, ["--digest"]),
        ({"artifact": "s3://bkt/p", "digest": "0" * 64, "model": "m"}, ["--artifact", "--model"]),
        (
            {"instance": "trn2.3xlarge", "artifact": "s3://bkt/p", "digest": "0" * 64},
            ["trn2", "--image"],
        ),
        ({"model": "s3://Bucket/x y", "digest": "0" * 64}, ["s3://Bucket/x y", "s3://BUCKET"]),
        ({"model": "s3://models/qwen", "digest": "12"}, ["--digest 12", "64 hexadecimal digits"]),
        ({"private": True}, ["--private", "--subnet"]),
        ({"spot": True, "capacity_block": "cr-1"}, ["--spot", "--capacity_block"]),
        ({"allow_cidr": "0.0.0.0/0"}, ["--allow_cidr 0.0.0.0/0"]),
        ({"allow_cidr": "here"}, ["--allow_cidr here"]),
        ({"allow_cidr": "203.0.113.7/24"}, ["--allow_cidr 203.0.113.7/24"]),
        *(({"instance": name}, [name]) for name in ("trn1", "trn3.48xlarge", "inf1.xlarge", "; x")),
    ],
    ids=str,
)
def test_a_target_that_cannot_be_is_refused_with_the_flags_that_say_so(
    given: dict[str, Any], shown: list[str]
) -> None:
    assert_refused(lambda: UpOptions(**{"instance": "c7i.large"} | given).host(REGION), shown)


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("We currently do not have sufficient trn1.2xlarge capacity in the", "capacity"),
        ("InsufficientInstanceCapacity", "capacity"),
        ("There is no Spot capacity available that matches your request", "capacity"),
        ("more vCPU capacity than your current vCPU limit of 0 allows", "quota"),
        ("MaxSpotInstanceCountExceeded", "quota"),
        ("User: arn is not authorized to perform: iam:CreateRole", "denied"),
        ("The image id '[ami-1]' does not exist", "image"),
        ("the wind blew", "other"),
    ],
)
def test_a_failed_launch_is_told_by_awss_words(reason: str, cause: str) -> None:
    assert LaunchFailure("Instance", reason).cause == cause


@pytest.fixture
def stack(calls: AwsAccount) -> TargetStack:
    return TargetStack(Aws(REGION), "demo")


def test_a_stack_is_created_so_that_a_failure_removes_it_and_its_tag_finds_it(
    stack: TargetStack, calls: AwsAccount
) -> None:
    def create(_account: AwsAccount, request: dict[str, Any]) -> dict[str, str]:
        assert request == {
            "StackName": "demo",
            "TemplateBody": "{}",
            "Parameters": [{"ParameterKey": "TargetName", "ParameterValue": "demo"}],
            "Capabilities": ["CAPABILITY_IAM"],
            "OnFailure": "DELETE",
            "Tags": [{"Key": "outrider:target", "Value": "demo"}],
        }
        return {"StackId": "arn:1"}

    described = {"StackId": "arn:1", "StackStatus": "CREATE_IN_PROGRESS"}
    calls.faults["CreateStack"] = create
    calls.faults["DescribeStacks"] = lambda *_: {"Stacks": [described]}
    assert stack.create("{}", {"TargetName": "demo"}).moving


@pytest.mark.parametrize("is_cancelled_first", [False, True])
def test_the_first_failure_of_a_stack_is_its_cause(
    is_cancelled_first: bool, stack: TargetStack, calls: AwsAccount
) -> None:
    rows = [
        ("Role", "CREATE_COMPLETE", ""),
        ("Instance", "CREATE_FAILED", "We do not have sufficient trn1.2xlarge capacity"),
        ("Profile", "CREATE_FAILED", "Resource creation cancelled"),
        ("demo", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed: [Instance]"),
        ("Role", "DELETE_FAILED", "Cannot delete entity"),
    ]
    failure = LaunchFailure(*rows[1][::2])
    if is_cancelled_first:  # resources are made at once, and events come as they like
        rows[1], rows[2] = rows[2], rows[1]
    fields = ("LogicalResourceId", "ResourceStatus", "ResourceStatusReason")
    events = [dict(zip(fields, row, strict=True)) for row in reversed(rows)]
    calls.faults["DescribeStackEvents"] = lambda *_: {"StackEvents": events}
    assert stack.failure(StackState("arn:1", "DELETE_COMPLETE", {}, {})) == failure
    assert failure.cause == "capacity"


def resource(name: str) -> dict[str, Any]:
    """The properties of a resource of the template."""
    properties: dict[str, Any] = read_template()["Resources"][name]["Properties"]
    return properties


def test_the_host_is_closed_encrypted_and_leaves_nothing_when_it_ends() -> None:
    launch = resource("Launch")["LaunchTemplateData"]
    assert launch["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    assert launch["InstanceInitiatedShutdownBehavior"] == "terminate"
    (disk,) = launch["BlockDeviceMappings"]
    assert disk["Ebs"]["Encrypted"] is True
    assert disk["Ebs"]["DeleteOnTermination"] is True
    opened, closed = resource("Firewall")["SecurityGroupIngress"]["Fn::If"][1:]
    assert closed == []
    assert [rule["FromPort"] for rule in opened] == [PORT]
    rules = resource("Firewall")["SecurityGroupEgress"]  # for packages and names alone
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules] == [
        ("tcp", 443, 443),
        ("tcp", 80, 80),
        ("udp", 53, 53),
    ]
    (network,) = resource("Instance")["NetworkInterfaces"]
    assert network["AssociatePublicIpAddress"] == {"Fn::If": ["HasNoAddress", False, True]}
    assert "KeyName" not in json.dumps(read_template())


def test_a_role_writes_to_its_builds_own_prefixes_and_reads_no_secrets_but_its_own() -> None:
    statements = resource("Role")["Policies"][0]["PolicyDocument"]["Statement"]
    (writing,) = [one["Fn::If"] for one in statements if "Fn::If" in one]
    assert writing[0] == "Builds"
    assert writing[2] == {"Ref": "AWS::NoValue"}
    names = [place["Fn::Sub"].partition("${Bucket}")[2] for place in writing[1]["Resource"]]
    assert names == ["/${Store}*", "/${Graphs}*", "/builds-of/${TargetName}/*"]
    assert "s3:Put" not in json.dumps([one for one in statements if "Fn::If" not in one])
    (denied,) = [statement for statement in statements if statement.get("Effect") == "Deny"]
    assert "ssm:GetParameter" in denied["Action"]
    assert denied["NotResource"][0]["Fn::Sub"].endswith("parameter/outrider/${TargetName}/*")


def test_a_host_follows_its_options() -> None:
    served: dict[str, Any] = {"artifact": "s3://bkt/p", "digest": "0" * 64}
    assert UpOptions(instance="trn2.3xlarge", **served, image="/own").host(REGION).image == "/own"
    options = UpOptions(instance="c7i.large", model="s3://models/qwen", digest="0" * 64)
    assert (options.bucket_name("1", REGION), options.served) == ("models", "0" * 64)
    options = UpOptions(instance="c7i.large", subnet="subnet-1", private=True)
    assert options.host(REGION).template_parameters["Private"] == "true"


def test_a_schedule_outside_the_instance_ends_it_at_its_lifetime_and_can_do_nothing_else() -> None:
    end, role = resource("End"), resource("EndRole")
    assert end["Target"]["Arn"]["Fn::Sub"].endswith(":aws-sdk:ec2:terminateInstances")
    assert end["Target"]["RoleArn"] == {"Fn::GetAtt": ["EndRole", "Arn"]}
    assert json.loads(end["Target"]["Input"]["Fn::Sub"]) == {"InstanceIds": ["${Instance}"]}
    expression, values = end["ScheduleExpression"]["Fn::Sub"]
    place, split = values["Minute"]["Fn::Select"]
    separator, parameter = split["Fn::Split"]
    assert parameter == {"Ref": "EndsAt"}
    minute = "2026-11-28T08:30Z".split(separator)[place]
    assert expression.replace("${Minute}", minute) == "at(2026-11-28T08:30:00)"
    (policy,) = role["Policies"]
    (statement,) = policy["PolicyDocument"]["Statement"]
    assert statement["Action"] == ["ec2:TerminateInstances"]
    (target,) = statement["Resource"]
    assert target["Fn::Sub"].endswith(":instance/${Instance}")
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "scheduler.amazonaws.com"}


def test_the_longest_user_data_fits_into_a_template() -> None:
    assert MAX_BYTES < len(template_body("x" * MAX_BYTES)) < 51_200


@pytest.mark.extended
def test_the_template_passes_awss_linter(tmp_path: Path) -> None:
    rendered = tmp_path / "target.json"
    rendered.write_text(template_body("#!/bin/bash\n"))
    for path in (TEMPLATE, rendered):
        linted = subprocess.run([tool("cfn-lint"), path], capture_output=True, text=True)
        assert linted.returncode == 0, linted.stdout


def test_a_wait_prints_each_new_state_and_an_old_one_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr("deploy.stack.time.monotonic", clock)
    wait = Wait("i-1")
    for clock.now, words in ((0, "pending"), (5, "pending"), (9, "running"), (70, "running")):
        wait.report(words)
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["i-1: pending, 0 s", "i-1: running, 9 s", "i-1: running, 70 s"]


MANIFEST = trn1_manifest()


def deployed(instance: str, artifact: str, digest: str | None = None) -> UpOptions:
    return UpOptions(instance=instance, artifact=artifact, digest=digest)


def test_the_speed_is_that_of_the_widest_graph_without_candidates() -> None:
    checkpoint = find_checkpoint(TRN1)
    spec = make_request(TRN1, checkpoint).spec
    (bucket,) = [graph for graph in spec.buckets if graph.nodes == 1 and graph.rows == spec.rows]
    speed, time = computed_speed(MANIFEST), pass_seconds(checkpoint.config, spec, bucket)
    assert speed is not None
    assert time is not None
    assert time.seconds is not None
    assert speed.tokens_per_second == pytest.approx(spec.rows / time.seconds)
    assert computed_speed(replace(MANIFEST, target="trn3")) is None, "a range is no speed"


def test_an_artefact_here_is_read_with_its_digest_and_refused_for_another_device(
    tmp_path: Path,
) -> None:
    write_manifest(tmp_path, MANIFEST)
    options = deployed("trn1.2xlarge", str(tmp_path))
    assert read_served(options) == MANIFEST
    assert options.served == MANIFEST.digest()
    other = deployed("inf2.xlarge", str(tmp_path))
    assert_refused(lambda: read_served(other), ["trn1", "inf2.xlarge"])


@pytest.fixture
def moto_aws(aws_keys: None) -> Iterator[Aws]:
    """moto's AWS, whose instance types are those that AWS described one day."""
    with mock_aws():
        yield Aws(REGION)


def test_of_an_artefact_on_s3_the_manifest_alone_is_fetched_and_checked(
    moto_aws: Aws, tmp_path: Path
) -> None:
    write_manifest(tmp_path, MANIFEST)
    s3 = moto_aws.client("s3")
    s3.create_bucket(Bucket="store")
    for digest in (MANIFEST.digest(), "0" * 64):
        s3.upload_file(str(tmp_path / "manifest.json"), "store", f"a/manifests/{digest}.json")
    right = deployed("trn1.2xlarge", "s3://store/a", MANIFEST.digest())
    wrong = deployed("trn1.2xlarge", "s3://store/a", "0" * 64)
    assert read_served(right) == MANIFEST
    assert_refused(lambda: read_served(wrong), ["manifests/"], BadArtifact)


def test_bundled_accelerators_and_sizes_are_those_of_ec2_but_for_trainium2s_memory(
    moto_aws: Aws,
) -> None:
    types = ["trn1.2xlarge", "trn1.32xlarge", "trn2.48xlarge", "inf2.xlarge"]
    ec2 = moto_aws.client("ec2")
    for row in ec2.describe_instance_types(InstanceTypes=types)["InstanceTypes"]:
        (device,) = row["NeuronInfo"]["NeuronDevices"]
        gib = device["Count"] * device["MemoryInfo"]["SizeInMiB"] // 1024
        if device["Name"] == "Trainium2":
            assert gib == 16 * 512, "EC2 reports it rightly now: the correction can go"
            gib = 16 * 96
        cores = device["Count"] * device["CoreInfo"]["Count"]
        told = f"{device['Count']} {device['Name']}: {cores} cores, {gib} GiB"
        assert bundled_prices().types[row["InstanceType"]].accelerators == told
    assert host_size(moto_aws, "r5.2xlarge") == (8, 64)
    assert_refused(lambda: host_size(moto_aws, "trn3.48xlarge"), ["trn3"])


def test_where_awss_image_for_neuron_is_gone_a_host_starts_from_the_base(moto_aws: Aws) -> None:
    host = deployed("trn1.2xlarge", "s3://bkt/a", "0" * 64).host(REGION)
    assert with_image(moto_aws, host).image == NEURON_BASE_IMAGE
