"""The command line of `outrider deploy` against a stand-in of AWS: what it creates, what it does
where AWS refuses, and that nothing is left.
"""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import boto3
import pytest
from cryptography import x509

from deploy.__main__ import main
from tests.support.cloud import FAILED, AwsAccount, Fault, Killed, failing, killed, refused
from tests.support.commands import Run

pytestmark = pytest.mark.extended

NO_CAPACITY = (
    "We currently do not have sufficient g6.xlarge capacity in the Availability Zone you "
    "requested. (Service: Ec2, Status Code: 500, HandlerErrorCode: GeneralServiceException)"
)
NO_QUOTA = (
    "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to. (Service: Ec2, Status Code: 400)"
)


@pytest.fixture(autouse=True)
def nothing_left(aws: AwsAccount) -> Iterator[None]:
    yield
    aws.faults = {}
    main(["down", "demo", "--with_bucket"])  # 1 where the test left nothing
    assert aws.instances == []
    assert boto3.client("s3").list_buckets()["Buckets"] == []


@pytest.fixture
def up(installed: list[str]) -> list[str]:
    """Words of a command that starts a target."""
    return ["up", "demo", "--instance", "g6.xlarge", *installed, "--yes"]


@pytest.fixture
def deploy(run: Run) -> Run:
    return partial(run, "deploy")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What this machine keeps of the target."""
    return tmp_path / "home/config/outrider/targets/demo"


def test_a_target_is_planned_started_inspected_and_removed_without_a_trace(
    aws: AwsAccount, up: list[str], deploy: Run, kept: Path
) -> None:
    plan = deploy(*up, "--dry_run")
    assert "AWS::EC2::Instance" in plan.out
    assert "0.80" in plan.out
    assert aws.instances == []
    started = deploy(*up)
    assert "outrider chat --target demo" in started.out
    assert "30 min without a session" in started.out
    assert len(aws.instances) == 1
    assert {path.name for path in kept.iterdir()} == {"target.json", "ca.pem", "token"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept.iterdir()} == {0o600}
    status = deploy("status", "demo")
    assert status.code == 0
    assert "CREATE_COMPLETE" in status.out
    assert "$" in status.out
    lines = [line for line in status.out.splitlines() if "aws ssm" in line]
    commands = {line[:12].strip(): shlex.split(line[12:]) for line in lines}
    session = ["aws", "ssm", "start-session", "--region", "us-east-1", "--target", *aws.instances]
    for label, document in (("tunnel", "PortForwardingSession"), ("log", "NonInteractiveCommand")):
        assert commands[label][:9] == [*session, "--document-name", f"AWS-Start{document}"]
    assert commands["tunnel"][10:] == ["portNumber=50051,localPortNumber=50151"]
    assert "outrider-target.service" in json.loads(commands["log"][10])["command"][0]
    removed = deploy("down", "demo")
    assert "left of demo in us-east-1: nothing" in removed.out
    assert "kept s3://outrider-123456789012-us-east-1" in removed.out
    assert aws.instances == []
    assert not kept.exists()
    assert deploy("status", "demo").code == 1


def test_no_secret_is_in_the_stack_and_an_open_port_is_in_certificate_and_named_target(
    aws: AwsAccount, up: list[str], kept: Path
) -> None:
    aws.host = FAILED  # what was handed over is still there
    subnet = boto3.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    assert main([*up, "--allow_cidr", "203.0.113.7/32", "--subnet", subnet]) == 1
    token = (kept / "token").read_text().strip()
    (stack,) = aws.stacks
    values = {row["ParameterKey"]: row["ParameterValue"] for row in stack["Parameters"]}
    assert (values["AllowCidr"], values["SubnetId"]) == ("203.0.113.7/32", subnet)
    body = boto3.client("cloudformation").get_template(StackName="outrider-demo")["TemplateBody"]
    names = [f"/outrider/demo/{name}" for name in ("certificate", "key", "keys")]
    rows = [
        boto3.client("ssm").get_parameter(Name=name, WithDecryption=True)["Parameter"]
        for name in names
    ]
    assert {row["Type"] for row in rows} == {"SecureString"}
    certificate, key, keys = (row["Value"] for row in rows)
    assert "PRIVATE KEY" in key
    assert key.splitlines()[1] not in str(body)
    assert token not in str(body) + certificate + key + keys
    pem = x509.load_pem_x509_certificate(certificate.encode())
    hosts = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    reservations = boto3.client("ec2").describe_instances(InstanceIds=aws.instances)["Reservations"]
    public = reservations[0]["Instances"][0]["PublicIpAddress"]
    assert public in map(str, hosts.get_values_for_type(x509.IPAddress))
    assert f'"{public}:50051"' in (kept / "target.json").read_text()


def test_a_zone_without_capacity_is_followed_by_the_next(
    aws: AwsAccount, up: list[str], deploy: Run
) -> None:
    aws.faults["CreateStack"] = failing(NO_CAPACITY, "us-east-1a")
    started = deploy(*up)
    assert started.code == 0
    assert "us-east-1a has no g6.xlarge free" in started.err
    assert "starting g6.xlarge in us-east-1b" in started.err
    assert len(aws.instances) == 1


@pytest.mark.parametrize(
    ("action", "fault", "says"),
    [
        ("CreateStack", failing(NO_CAPACITY), "AWS has no g6.xlarge free"),
        ("CreateStack", failing(NO_QUOTA), "--quota-code L-DB2E81BA"),
        ("CreateStack", failing("User is not authorized to perform iam:CreateRole"), "deploy.md"),
        ("CreateStack", refused("AccessDenied"), "AWS denies CreateStack"),
        ("DescribeStacks", refused("Throttling"), "to resume"),
        ("DescribeSubnets", refused("UnauthorizedOperation"), "AWS denies DescribeSubnets"),
    ],
)
def test_a_refusal_of_aws_says_what_to_do_and_leaves_no_instance(
    action: str, fault: Fault, says: str, aws: AwsAccount, up: list[str], deploy: Run, kept: Path
) -> None:
    aws.faults[action] = fault
    ended = deploy(*up)
    ended.assert_failed(says)
    aws.faults = {}
    assert (aws.instances, aws.stacks) == ([], [])
    assert not kept.exists()
    is_uploaded = action == "CreateStack"
    assert ("s3://outrider-123456789012-us-east-1 keeps what" in ended.err) == is_uploaded


def test_a_proxys_page_in_place_of_an_answer_of_aws_is_told_in_one_line(
    up: list[str], deploy: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    page: tuple[int, dict[str, str], str] = (200, {}, "<html>\nlog in<br>\n")
    with monkeypatch.context() as proxy:
        proxy.setattr("moto.core.botocore_stubber.BotocoreStubber.process_request", lambda *_: page)
        deploy(*up).assert_failed("AWS cannot be reached: Unable to")


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ({"PutParameter": refused("AccessDenied")}, "`outrider deploy down demo` removes it"),
        ({"SendCommand": refused("AccessDenied")}, "`outrider deploy down demo` removes it"),
        ({"DescribeStacks": refused("Throttling", after="CreateStack")}, "may still be running"),
        ({}, "FAILED at: model"),
    ],
)
def test_a_failure_after_the_start_says_that_an_instance_is_paid_for_and_the_same_command_goes_on(
    faults: dict[str, Fault], told: str, aws: AwsAccount, up: list[str], deploy: Run
) -> None:
    aws.faults, serving = faults, aws.host
    aws.host = serving if faults else FAILED
    ended = deploy(*up)
    ended.assert_failed()
    assert told in ended.err
    assert "still be running and billed" in ended.err
    aws.faults, aws.host = {}, serving
    (before,) = aws.instances
    assert main(up) == 0
    assert aws.instances == [before]


def test_a_target_is_not_mistaken_for_one_of_another_region_name_or_market(
    aws: AwsAccount, up: list[str], monkeypatch: pytest.MonkeyPatch, deploy: Run, kept: Path
) -> None:
    assert main(up) == 0
    (before,) = aws.instances
    for words in (["down", "demo"], up):
        deploy(*words, "--region", "eu-west-1").assert_failed("demo was started in us-east-1")
    assert (kept / "token").is_file(), "its credentials are lost"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CONFIG_HOME", str(kept / "another machine"))
        asked = deploy("down", "demo", "--region", "eu-west-1")
        asked.assert_failed("it runs in us-east-1: --region us-east-1")
        assert main(["down", "absent"]) == 1
    assert aws.instances == [before]
    deploy(*up, "--spot").assert_failed("Market on-demand", "spot")
    bucket = deploy("down", "other", "--with_bucket")
    bucket.assert_failed("outrider-demo may need what the bucket holds")


def test_nothing_is_made_from_an_image_that_is_gone_or_where_nobody_can_be_asked(
    aws: AwsAccount, up: list[str], deploy: Run
) -> None:
    gone = ["--image", "/aws/service/neuron/none/latest/image_id"]
    refusal = deploy(*up, *gone)
    refusal.assert_failed("the machine image is gone", "(for Neuron /aws/service/neuron/")
    deploy(*up[:-1]).assert_failed("--yes starts")
    assert not {"CreateStack", "CreateBucket"} & {*aws.calls}


@pytest.mark.parametrize(
    ("at", "then"),
    [("PutParameter", "up"), ("PutParameter", "down"), ("GetCommandInvocation", "up")],
)
def test_a_start_that_was_killed_goes_on_with_the_same_credentials_or_can_be_removed(
    at: str, then: str, aws: AwsAccount, up: list[str], kept: Path
) -> None:
    aws.faults[at] = killed
    with pytest.raises(Killed):
        main(up)
    aws.faults, aws.silent = {}, False
    (before,), (token,) = aws.instances, (path.read_text() for path in kept.rglob("token"))
    assert main(up if then == "up" else ["down", "demo"]) == 0
    assert aws.instances == ([before] if then == "up" else [])
    assert [path.read_text() for path in kept.rglob("token")] == [token] * (then == "up")


def test_a_host_that_ended_itself_is_started_anew(
    aws: AwsAccount, up: list[str], deploy: Run, kept: Path
) -> None:
    assert main(up) == 0
    first, token = aws.instances, (kept / "token").read_text()
    boto3.client("ec2").terminate_instances(InstanceIds=first)
    told = deploy("status", "demo")
    assert (told.code, "terminated" in told.out) == (1, True)
    assert main(up) == 0
    assert aws.instances != first
    assert (kept / "token").read_text() != token


def test_a_stack_that_outrider_did_not_make_is_left_alone(
    aws: AwsAccount, up: list[str], deploy: Run
) -> None:
    cloudformation = boto3.client("cloudformation")
    topic = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
    cloudformation.create_stack(StackName="outrider-demo", TemplateBody=topic)
    for words in (up, ["down", "demo"], ["status", "demo"]):
        deploy(*words).assert_failed("was not made by Outrider")
    (stack,) = aws.stacks
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    cloudformation.delete_stack(StackName="outrider-demo")
