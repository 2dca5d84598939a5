"""The command line of `outrider deploy` against a stand-in of AWS: what it creates, what it does
where AWS refuses, and that nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from deploy.__main__ import main
from tests.support.aws_server import (
    FAILED,
    IMAGE,
    REGION,
    SERVING,
    AwsServer,
    aws_server,
)
from tests.support.repository import ROOT

pytestmark = pytest.mark.extended

NO_CAPACITY = (
    "We currently do not have sufficient g6.xlarge capacity in the Availability Zone you "
    "requested. (Service: Ec2, Status Code: 500, HandlerErrorCode: GeneralServiceException)"
)
NO_QUOTA = (
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to. (Service: Ec2, Status Code: 400)"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AwsServer]:
    with aws_server(tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def aws(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsServer]:
    """The server without faults, also for commands that run in this process."""
    server.control(faults=[], host=SERVING, takes_secrets=True)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.control(faults=[])
    main(["down", "demo", "--with_bucket"])  # 1 where the test left nothing
    assert instances() == []
    assert boto3.client("s3", region_name=REGION).list_buckets()["Buckets"] == []


@pytest.fixture
def up(tmp_path: Path) -> list[str]:
    """Words of a command that starts a target."""
    wheel = tmp_path / "outrider-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    words = ["up", "demo", "--instance", "g6.xlarge", "--image", IMAGE]
    return [*words, "--wheel", str(wheel), "--yes"]


def kept(aws: AwsServer) -> Path:
    """What this machine keeps of the target."""
    return aws.home / "config/outrider/targets/demo"


def killed(aws: AwsServer, words: list[str], after: str) -> None:
    """Run a command and end it by SIGKILL once AWS was asked for the action `after`."""
    aws.control()
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy", *words],
        cwd=ROOT,
        env=aws.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    called: list[str] = []
    ends = time.monotonic() + 300
    while after not in called:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < ends, called
        called += aws.control()["called"]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()


def instances() -> list[str]:
    """Ids of the instances that run."""
    alive = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    found = boto3.client("ec2", region_name=REGION).describe_instances(Filters=[alive])
    return [row["InstanceId"] for group in found["Reservations"] for row in group["Instances"]]


def test_a_target_is_planned_started_told_of_and_removed_without_a_trace(
    aws: AwsServer, up: list[str]
) -> None:
    plan = aws.deploy("plan", *up[1:6])
    assert "AWS::EC2::Instance" in plan.stdout
    assert "0.80" in plan.stdout
    assert instances() == []
    started = aws.deploy(*up)
    assert "outrider chat --target demo" in started.stdout
    assert "30 min without a session" in started.stdout
    assert len(instances()) == 1
    assert {path.name for path in kept(aws).iterdir()} == {"target.json", "ca.pem", "token"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept(aws).iterdir()} == {0o600}
    told = aws.deploy("status", "demo")
    assert "CREATE_COMPLETE" in told.stdout
    assert "$" in told.stdout
    removed = aws.deploy("down", "demo")
    assert "left of demo in us-east-1: nothing" in removed.stdout
    assert "kept s3://outrider-123456789012-us-east-1" in removed.stdout
    assert instances() == []
    assert not kept(aws).exists()
    aws.deploy("status", "demo", check=1)


def test_no_secret_is_in_the_stack_and_the_host_alone_is_told_the_key(
    aws: AwsServer, up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.control(takes_secrets=False, host="activating\n")
    assert main([*up, "--no_wait"]) == 0
    token = (kept(aws) / "token").read_text().strip()
    cloud, ssm = boto3.client("cloudformation"), boto3.client("ssm")
    template = str(cloud.get_template(StackName="outrider-demo")["TemplateBody"])
    handed = [
        ssm.get_parameter(Name=f"/outrider/demo/{name}", WithDecryption=True)["Parameter"]
        for name in ("certificate", "key", "keys")
    ]
    assert {one["Type"] for one in handed} == {"SecureString"}
    assert "PRIVATE KEY" in handed[1]["Value"]
    assert token not in template + "".join(one["Value"] for one in handed)
    assert handed[1]["Value"].splitlines()[1] not in template


def test_a_zone_without_capacity_is_followed_by_the_next(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fault = {"action": "CreateStack", "zone": "us-east-1a", "reason": NO_CAPACITY}
    aws.control(faults=[fault])
    assert main(up) == 0
    said = capsys.readouterr()
    assert "us-east-1a has no g6.xlarge free" in said.err
    assert "starting g6.xlarge in us-east-1b" in said.err
    assert len(instances()) == 1


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"action": "CreateStack", "reason": NO_CAPACITY}, "AWS has no g6.xlarge free"),
        ({"action": "CreateStack", "reason": NO_QUOTA}, "--quota-code L-DB2E81BA"),
        (
            {"action": "CreateStack", "reason": "User is not authorized to perform iam:CreateRole"},
            "docs/deploy.md",
        ),
        (
            {"action": "CreateStack", "code": "AccessDenied", "message": "no"},
            "AWS denies CreateStack",
        ),
        (
            {"action": "DescribeStacks", "code": "Throttling", "message": "Rate exceeded"},
            "the same command goes on",
        ),
        (
            {"action": "DescribeSubnets", "code": "UnauthorizedOperation", "message": "no"},
            "AWS denies DescribeSubnets",
        ),
    ],
)
def test_a_refusal_of_aws_says_what_to_do_and_leaves_no_instance(
    fault: dict[str, str],
    says: str,
    aws: AwsServer,
    up: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    aws.control(faults=[fault])
    assert main(up) == 1
    *before, error = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: ")
    assert says in error
    assert instances() == []
    assert not kept(aws).exists()
    made = fault["action"] == "CreateStack"
    assert ("s3://outrider-123456789012-us-east-1 keeps what" in "".join(before)) == made


@pytest.mark.parametrize(
    "fault",
    [
        {"action": "PutParameter", "code": "AccessDenied", "message": "no"},
        {"action": "PutParameter", "code": "ThrottlingException", "message": "slowly"},
        {"action": "SendCommand", "code": "AccessDeniedException", "message": "no"},
    ],
)
def test_a_refusal_after_the_start_says_that_an_instance_is_paid_for_and_how_to_end_it(
    fault: dict[str, str], aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    aws.control(faults=[fault])
    assert main(up) == 1
    *_, told, error = capsys.readouterr().err.strip().splitlines()
    assert "it is paid for: `outrider deploy down demo` ends it" in told
    assert error.startswith("error: ")
    (before,) = instances()
    aws.control(faults=[])
    assert main(up) == 0
    assert instances() == [before]


def test_a_stack_whose_state_is_not_told_any_more_may_be_paid_for(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = {"action": "DescribeStacks", "code": "Throttling", "message": "slowly"}
    aws.control(faults=[refused | {"after": "CreateStack"}])
    assert main(up) == 1
    assert "an instance of demo may be running, and it is paid for" in capsys.readouterr().err
    (before,) = instances()
    aws.control(faults=[])
    assert main(up) == 0
    assert instances() == [before]


@pytest.mark.parametrize("action", ["DescribeSubnets", "GetCallerIdentity", "CreateStack"])
def test_a_page_of_a_proxy_in_place_of_an_answer_is_one_line(
    action: str, aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    aws.control(faults=[{"action": action, "page": "<html>\nlog in<br>\n"}])
    assert main(up) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: AWS cannot be asked: Unable to parse response")


def test_prices_behind_a_proxy_say_what_could_not_be_asked(
    aws: AwsServer, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.control(faults=[{"action": "DescribeSpotPriceHistory", "page": "<html>\nlog in<br>\n"}])
    main(["prices", "--instance", "trn1.2xlarge", "--region", "eu-west-1"])
    assert "Traceback" not in capsys.readouterr().err


def test_a_target_in_another_region_is_found_and_a_missing_one_is_no_success(
    aws: AwsServer,
    up: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(up) == 0
    (before,) = instances()
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CONFIG_HOME", str(tmp_path / "another machine"))
        assert main(["down", "demo", "--region", "eu-west-1"]) == 1
        assert "it runs in us-east-1: --region us-east-1" in capsys.readouterr().err
        assert main(["down", "absent"]) == 1
    assert instances() == [before]


def test_a_private_instance_has_no_public_address(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    subnet = boto3.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    assert main([*up, "--private", "--subnet", subnet]) == 0
    assert "which has no public address" in capsys.readouterr().out
    (stack,) = boto3.client("cloudformation").describe_stacks()["Stacks"]
    given = {one["ParameterKey"]: one["ParameterValue"] for one in stack["Parameters"]}
    assert (given["Private"], given["SubnetId"]) == ("true", subnet)


@pytest.mark.parametrize(
    ("family", "said"),
    [("none", "--image names another one;"), ("neuron/none", "(for Neuron /aws/service/neuron/")],
)
def test_an_image_that_is_gone_is_said_before_anything_is_made(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str], family: str, said: str
) -> None:
    assert main([*up[:4], "--image", f"/aws/service/{family}/latest/image_id", *up[6:]]) == 1
    error = capsys.readouterr().err
    assert "the machine image is gone" in error
    assert said in error
    assert "CreateStack" not in aws.control()["called"]


def test_a_start_that_was_killed_before_the_handover_goes_on(aws: AwsServer, up: list[str]) -> None:
    aws.control(faults=[{"action": "PutParameter", "seconds": 10}])
    killed(aws, up, after="PutParameter")
    (before,) = instances()
    aws.control(faults=[])
    assert main(up) == 0
    assert instances() == [before]
    assert (kept(aws) / "token").is_file()


def test_a_start_that_was_killed_while_waiting_goes_on_with_the_same_credentials(
    aws: AwsServer, up: list[str]
) -> None:
    aws.control(host="activating\n", takes_secrets=False)
    killed(aws, up, after="GetCommandInvocation")
    (before,), token = instances(), (kept(aws) / "token").read_text()
    aws.control(host=SERVING, takes_secrets=True)
    assert main(up) == 0
    assert instances() == [before]
    assert (kept(aws) / "token").read_text() == token


def test_a_start_that_was_killed_can_be_removed(aws: AwsServer, up: list[str]) -> None:
    aws.control(faults=[{"action": "PutParameter", "seconds": 10}])
    killed(aws, up, after="PutParameter")
    aws.control(faults=[])
    assert main(["down", "demo"]) == 0
    assert instances() == []


def test_a_host_that_fails_is_told_of_with_its_step(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    aws.control(host=FAILED)
    assert main(up) == 1
    assert "FAILED at: model" in capsys.readouterr().err


def test_a_host_that_ended_itself_is_started_anew(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(up) == 0
    (first,), token = instances(), (kept(aws) / "token").read_text()
    boto3.client("ec2", region_name=REGION).terminate_instances(InstanceIds=[first])
    assert main(["status", "demo"]) == 1
    assert "terminated" in capsys.readouterr().out
    assert main(up) == 0
    assert instances() != [first]
    assert (kept(aws) / "token").read_text() != token


def test_a_name_that_stands_with_something_else_is_refused(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(up) == 0
    assert main([*up, "--spot"]) == 1
    assert "stands with Market on-demand, and spot is asked for" in capsys.readouterr().err


def test_an_open_port_is_in_the_certificate_and_in_the_named_target(
    aws: AwsServer, up: list[str]
) -> None:
    from cryptography import x509

    aws.control(takes_secrets=False)
    assert main([*up, "--allow_cidr", "203.0.113.7/32", "--no_wait"]) == 0
    pem = boto3.client("ssm").get_parameter(Name="/outrider/demo/certificate", WithDecryption=True)
    certificate = x509.load_pem_x509_certificate(pem["Parameter"]["Value"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    address = boto3.client("ec2").describe_instances(InstanceIds=instances())["Reservations"][0]
    public = address["Instances"][0]["PublicIpAddress"]
    assert public in [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    assert f'"{public}:50051"' in (kept(aws) / "target.json").read_text()


def test_a_tunnel_hands_the_session_to_awss_plugin_without_showing_it_in_its_arguments(
    aws: AwsServer, up: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(up) == 0
    plugin, noted = tmp_path / "session-manager-plugin", tmp_path / "noted"
    plugin.write_text(f'#!/bin/sh\necho "$AWS_SSM_START_SESSION_RESPONSE" "$@" > {noted}\n')
    plugin.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["tunnel", "demo"]) == 0
    response, _, arguments = noted.read_text().partition("}")
    assert '"TokenValue": "secret"' in response
    assert "secret" not in arguments
    assert '"portNumber": ["50051"]' in arguments
    assert "TerminateSession" in aws.control()["called"]


def test_without_the_plugin_a_tunnel_says_what_is_missing(
    aws: AwsServer,
    up: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(up) == 0
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["tunnel", "demo"]) == 1
    assert "session-manager-plugin, which is not installed" in capsys.readouterr().err


def test_a_running_targets_credentials_are_not_lost_by_a_command_for_another_region(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(up) == 0
    for words in (["down", "demo"], up):
        assert main([*words, "--region", "eu-west-1"]) == 1
        assert "demo was started in us-east-1" in capsys.readouterr().err
    assert (kept(aws) / "token").is_file()


def test_a_stack_that_outrider_did_not_make_is_left_alone(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    cloudformation = boto3.client("cloudformation")
    topic = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    cloudformation.create_stack(StackName="outrider-demo", TemplateBody=json.dumps(topic))
    try:
        for words in (up, ["down", "demo"], ["status", "demo"]):
            assert main(words) == 1
            assert "was not made by Outrider" in capsys.readouterr().err
        (stack,) = cloudformation.describe_stacks(StackName="outrider-demo")["Stacks"]
        assert stack["StackStatus"] == "CREATE_COMPLETE"
    finally:
        cloudformation.delete_stack(StackName="outrider-demo")


def test_nothing_is_started_unasked_where_nobody_can_be_asked(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(up[:-1]) == 1
    assert "--yes starts" in capsys.readouterr().err
    called = aws.control()["called"]
    assert "CreateStack" not in called
    assert "CreateBucket" not in called


def test_the_bucket_is_not_removed_under_another_target(
    aws: AwsServer, up: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(up) == 0
    assert main(["down", "other", "--with_bucket"]) == 1
    assert "outrider-demo may need what the bucket holds" in capsys.readouterr().err
