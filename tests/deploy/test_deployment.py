"""What a deployment is made of: instance types, images, quotas, the template, what a host serves
and how fast, and what a failed launch means.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
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
from inference.files.artifact import Manifest, write_manifest
from tests.support.artifacts import TRN1, trn1_manifest
from tests.support.clock import Clock
from tests.support.refusals import assert_refused
from tests.support.repository import tool


def resource(name: str) -> dict[str, Any]:
    """The properties of a resource of the template."""
    properties: dict[str, Any] = read_template()["Resources"][name]["Properties"]
    return properties


@pytest.mark.parametrize(
    ("name", "kind", "part"),
    [
        ("trn1.2xlarge", "neuron", "pytorch-2.9"),
        ("trn1n.32xlarge", "neuron", "pytorch-2.9"),
        ("inf2.xlarge", "neuron", "pytorch-2.9"),
        ("trn2.48xlarge", "neuron", "pytorch-2.9"),
        ("g6.xlarge", "cuda", "/x86_64/base-oss-nvidia"),
        ("g5g.xlarge", "cuda", "/arm64/base-oss-nvidia"),
        ("p5.48xlarge", "cuda", "/x86_64/base-oss-nvidia"),
        ("c7i.2xlarge", "cpu", "/amd64/hvm"),
        ("c7gn.2xlarge", "cpu", "/arm64/hvm"),
        ("m7i-flex.large", "cpu", "/amd64/hvm"),
    ],
)
def test_an_instance_starts_from_the_image_of_its_device(name: str, kind: str, part: str) -> None:
    assert InstanceKind(name).kind == kind
    assert part in InstanceKind(name).image
    assert (InstanceKind(name).image == NEURON_IMAGE) == (kind == "neuron")


@pytest.mark.parametrize("name", ["trn1", "trn3.48xlarge", "inf1.xlarge", "; rm -rf /"])
def test_what_cannot_serve_a_target_is_refused(name: str) -> None:
    assert_refused(lambda: InstanceKind(name), [name])


def test_the_quota_is_named_as_aws_names_it() -> None:
    assert InstanceKind("trn1.2xlarge").quota("on-demand").code == "L-2C3B7624"
    assert InstanceKind("trn1.2xlarge").quota("spot").name == "All Trn Spot Instance Requests"
    assert "Standard" in InstanceKind("c7i.large").quota("on-demand").name


def test_accelerators_of_aws_need_an_artefact_and_one_on_s3_its_digest() -> None:
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
    ],
    ids=str,
)
def test_a_target_that_cannot_be_is_refused_with_the_flags_that_say_so(
    given: dict[str, Any], shown: list[str]
) -> None:
    assert_refused(lambda: UpOptions(**{"instance": "c7i.large"} | given), shown)


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


def stack_of(*replies: tuple[str, dict[str, Any], dict[str, Any]]) -> TargetStack:
    """The stack "demo" at a CloudFormation that takes these calls alone: operation, request and
    reply.
    """
    keys = dict.fromkeys(("aws_access_key_id", "aws_secret_access_key"), "testing")
    client = boto3.client("cloudformation", region_name="us-east-1", **keys)
    stubber = Stubber(client)
    for operation, asked, reply in replies:
        stubber.add_response(operation, reply, asked)
    stubber.activate()
    aws = Aws.__new__(Aws)
    aws.client = lambda service: client  # type: ignore[assignment]
    return TargetStack(aws, "demo")


NOW = datetime(2026, 11, 1, tzinfo=UTC)
MADE = {"StackId": "arn:1", "StackName": "demo", "CreationTime": NOW}


def test_a_stack_is_created_so_that_a_failure_removes_it_and_its_tag_finds_it() -> None:
    asked = {
        "StackName": "demo",
        "TemplateBody": "{}",
        "Parameters": [{"ParameterKey": "TargetName", "ParameterValue": "demo"}],
        "Capabilities": ["CAPABILITY_IAM"],
        "OnFailure": "DELETE",
        "Tags": [{"Key": "outrider:target", "Value": "demo"}],
    }
    described = {"Stacks": [MADE | {"StackStatus": "CREATE_IN_PROGRESS"}]}
    stack = stack_of(
        ("create_stack", asked, {"StackId": "arn:1"}),
        ("describe_stacks", {"StackName": "arn:1"}, described),
    )
    assert stack.create("{}", {"TargetName": "demo"}).moving


def test_the_first_failure_of_a_stack_is_its_cause() -> None:
    happened = [
        ("Role", "CREATE_COMPLETE", ""),
        ("Instance", "CREATE_FAILED", "We do not have sufficient trn1.2xlarge capacity"),
        ("Profile", "CREATE_FAILED", "Resource creation cancelled"),
        ("demo", "ROLLBACK_IN_PROGRESS", "The following resource(s) failed: [Instance]"),
        ("Role", "DELETE_FAILED", "Cannot delete entity"),
    ]
    fields = ("LogicalResourceId", "ResourceStatus", "ResourceStatusReason")
    common = {"EventId": "1", "StackId": "arn:1", "StackName": "demo", "Timestamp": NOW}
    events = [common | dict(zip(fields, one, strict=True)) for one in reversed(happened)]
    for cancelled_first in (False, True):
        if cancelled_first:  # resources are made at once, and events come as they like
            events[2], events[3] = events[3], events[2]
        asked = {"StackName": "arn:1"}
        stack = stack_of(("describe_stack_events", asked, {"StackEvents": events}))
        found = stack.failure(StackState("arn:1", "DELETE_COMPLETE", {}, {}))
        assert found == LaunchFailure(*happened[1][::2])
        assert found.cause == "capacity"


def test_the_host_is_closed_encrypted_and_leaves_nothing_when_it_ends() -> None:
    launch = resource("Launch")["LaunchTemplateData"]
    assert launch["MetadataOptions"]["HttpTokens"] == "required"
    assert launch["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert launch["InstanceInitiatedShutdownBehavior"] == "terminate"
    (disk,) = launch["BlockDeviceMappings"]
    assert disk["Ebs"]["Encrypted"] is True
    assert disk["Ebs"]["DeleteOnTermination"] is True
    opened, closed = resource("Firewall")["SecurityGroupIngress"]["Fn::If"][1:]
    assert closed == []
    assert [rule["FromPort"] for rule in opened] == [PORT]
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


def test_a_host_calls_out_for_packages_and_names_alone() -> None:
    rules = resource("Firewall")["SecurityGroupEgress"]
    assert [(rule["IpProtocol"], rule["FromPort"], rule["ToPort"]) for rule in rules] == [
        ("tcp", 443, 443),
        ("tcp", 80, 80),
        ("udp", 53, 53),
    ]


def test_a_host_follows_its_options() -> None:
    served: dict[str, Any] = {"artifact": "s3://bkt/p", "digest": "0" * 64}
    options = UpOptions(instance="trn2.3xlarge", **served, image="/own/image")
    assert options.host("us-east-1").image == "/own/image"
    options = UpOptions(instance="c7i.large", model="s3://models/qwen", digest="0" * 64)
    assert options.bucket_name("1", "us-east-1") == "models"
    assert options.served == "0" * 64
    options = UpOptions(instance="c7i.large", subnet="subnet-1", private=True)
    assert options.host("us-east-1").template_parameters["Private"] == "true"


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
    body = template_body("x" * MAX_BYTES)
    assert len(body) < 51_200
    assert json.loads(body)["Resources"]["Launch"]["Properties"]["LaunchTemplateData"]["UserData"]


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


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return trn1_manifest()


def deployed(instance: str, artifact: str, digest: str | None = None) -> UpOptions:
    return UpOptions(instance=instance, artifact=artifact, digest=digest)


def test_the_speed_is_that_of_the_widest_graph_without_candidates(manifest: Manifest) -> None:
    checkpoint = find_checkpoint(TRN1)
    spec = make_request(TRN1, checkpoint).spec
    (bucket,) = [one for one in spec.buckets if one.nodes == 1 and one.rows == spec.rows]
    speed = computed_speed(manifest)
    assert speed is not None
    time = pass_seconds(checkpoint.config, spec, bucket)
    assert time is not None
    assert time.seconds is not None
    assert speed.tokens_per_second == pytest.approx(spec.rows / time.seconds)
    assert computed_speed(replace(manifest, target="trn3")) is None, "a range is no speed"


def test_an_artefact_here_is_read_with_its_digest_and_refused_for_another_device(
    manifest: Manifest, tmp_path: Path
) -> None:
    write_manifest(tmp_path, manifest)
    deployment, other = (deployed(one, str(tmp_path)) for one in ("trn1.2xlarge", "inf2.xlarge"))
    assert read_served(deployment) == manifest
    assert deployment.served == manifest.digest()
    assert_refused(lambda: read_served(other), ["trn1", "inf2.xlarge"])


@pytest.mark.usefixtures("aws_keys")
def test_of_an_artefact_on_s3_the_manifest_alone_is_fetched_and_checked(
    manifest: Manifest, tmp_path: Path
) -> None:
    write_manifest(tmp_path, manifest)
    with mock_aws():
        s3 = boto3.client("s3", region_name="us-east-1")
        s3.create_bucket(Bucket="store")
        for digest in (manifest.digest(), "0" * 64):
            s3.upload_file(str(tmp_path / "manifest.json"), "store", f"a/manifests/{digest}.json")
        right, wrong = (
            deployed("trn1.2xlarge", "s3://store/a", digest)
            for digest in (manifest.digest(), "0" * 64)
        )
        assert read_served(right) == manifest
        assert_refused(lambda: read_served(wrong), ["manifests/"], BadArtifact)


@pytest.fixture
def ec2(aws_keys: None) -> Any:
    """EC2 of moto, whose instance types are those that AWS described one day."""
    with mock_aws():
        yield boto3.client("ec2", region_name="us-east-1")


@pytest.mark.parametrize("name", ["trn1.2xlarge", "trn1.32xlarge", "trn2.48xlarge", "inf2.xlarge"])
def test_the_bundled_accelerators_are_as_ec2_describes_them_but_for_trainium2s_memory(
    name: str, ec2: Any
) -> None:
    found = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]["NeuronInfo"]
    (device,) = found["NeuronDevices"]
    gib = device["Count"] * device["MemoryInfo"]["SizeInMiB"] // 1024
    if device["Name"] == "Trainium2":
        assert gib == 16 * 512, "EC2 reports it rightly now: the correction can go"
        gib = 16 * 96
    cores = device["Count"] * device["CoreInfo"]["Count"]
    told = f"{device['Count']} {device['Name']}: {cores} cores, {gib} GiB"
    assert bundled_prices().types[name].accelerators == told


def test_a_type_has_the_size_that_ec2_describes_and_one_that_it_does_not_is_refused(
    ec2: Any,
) -> None:
    assert host_size(Aws("us-east-1"), "r5.2xlarge") == (8, 64)
    assert_refused(lambda: host_size(Aws("us-east-1"), "trn3.48xlarge"), ["trn3"])


def test_where_awss_image_for_neuron_is_gone_a_host_starts_from_the_base(ec2: Any) -> None:
    host = deployed("trn1.2xlarge", "s3://bkt/a", "0" * 64).host("us-east-1")
    assert with_image(Aws("us-east-1"), host).image == NEURON_BASE_IMAGE
