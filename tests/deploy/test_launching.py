"""The command line of `outrider deploy` against a stand-in of AWS: what it creates, what it does
where AWS refuses, and that nothing is left.
"""

from __future__ import annotations

import json
import shlex
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import boto3
import pytest
from cryptography import x509

from deploy.__main__ import main
from tests.support.cloud import FAILED, REGION, SERVING, AwsServer
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
def nothing_left(aws: AwsServer) -> Iterator[None]:
    yield
    aws.control(faults=[])
    main(["down", "demo", "--with_bucket"])  # 1 where the test left nothing
    assert instances() == []
    assert boto3.client("s3", region_name=REGION).list_buckets()["Buckets"] == []


@pytest.fixture
def up(installed: list[str]) -> list[str]:
    """Words of a command that starts a target."""
    return ["up", "demo", "--instance", "g6.xlarge", *installed, "--yes"]


@pytest.fixture
def deploy(run: Run) -> Run:
    return partial(run, "deploy")


def kept(aws: AwsServer) -> Path:
    """What this machine keeps of the target."""
    return aws.home / "config/outrider/targets/demo"


def killed(aws: AwsServer, words: list[str], after: str) -> None:
    """Run a command and end it by SIGKILL once AWS was asked for the action `after`."""
    aws.control()
    process = aws.begin("-m", "deploy", *words)
    called: list[str] = []
    ends = time.monotonic() + 300
    while after not in called:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < ends, called
        called += aws.control()["called"]
        time.sleep(0.05)
    process.kill()
    process.wait()


def instances() -> list[str]:
    """Ids of the instances that run."""
    alive = {"Name": "instance-state-name", "Values": ["pending", "running"]}
    found = boto3.client("ec2", region_name=REGION).describe_instances(Filters=[alive])
    return [row["InstanceId"] for group in found["Reservations"] for row in group["Instances"]]


def test_a_target_is_planned_started_inspected_and_removed_without_a_trace(
    aws: AwsServer, up: list[str], deploy: Run
) -> None:
    plan = deploy(*up, "--dry_run")
    assert "AWS::EC2::Instance" in plan.out
    assert "0.80" in plan.out
    assert instances() == []
    started = deploy(*up)
    assert "outrider chat --target demo" in started.out
    assert "30 min without a session" in started.out
    assert len(instances()) == 1
    assert {path.name for path in kept(aws).iterdir()} == {"target.json", "ca.pem", "token"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept(aws).iterdir()} == {0o600}
    status = deploy("status", "demo")
    assert status.code == 0
    assert "CREATE_COMPLETE" in status.out
    assert "$" in status.out
    check_commands(status.out.splitlines())
    removed = deploy("down", "demo")
    assert "left of demo in us-east-1: nothing" in removed.out
    assert "kept s3://outrider-123456789012-us-east-1" in removed.out
    assert instances() == []
    assert not kept(aws).exists()
    assert deploy("status", "demo").code == 1


def check_commands(status: list[str]) -> None:
    """The status has the commands for logs and tunnel."""
    lines = {line[:12].strip(): shlex.split(line[12:]) for line in status if "aws ssm" in line}
    session = ["aws", "ssm", "start-session", "--region", "us-east-1", "--target", *instances()]
    for label, document in (("tunnel", "PortForwardingSession"), ("log", "NonInteractiveCommand")):
        assert lines[label][:9] == [*session, "--document-name", f"AWS-Start{document}"]
    assert lines["tunnel"][10:] == ["portNumber=50051,localPortNumber=50151"]
    (command,) = json.loads(lines["log"][10])["command"]
    assert "outrider-target.service" in command


def test_no_secret_is_in_the_stack_and_an_open_port_is_in_certificate_and_named_target(
    aws: AwsServer, up: list[str]
) -> None:
    aws.control(takes_secrets=False, host=FAILED)
    subnet = boto3.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]
    opened = ["--allow_cidr", "203.0.113.7/32", "--subnet", subnet]
    assert main([*up, *opened]) == 1
    token = (kept(aws) / "token").read_text().strip()
    cloud, ssm = boto3.client("cloudformation"), boto3.client("ssm")
    (stack,) = cloud.describe_stacks()["Stacks"]
    values = {row["ParameterKey"]: row["ParameterValue"] for row in stack["Parameters"]}
    assert (values["AllowCidr"], values["SubnetId"]) == ("203.0.113.7/32", subnet)
    template = str(cloud.get_template(StackName="outrider-demo")["TemplateBody"])
    certificate, key, keys = (
        ssm.get_parameter(Name=f"/outrider/demo/{name}", WithDecryption=True)["Parameter"]
        for name in ("certificate", "key", "keys")
    )
    secrets = [certificate["Value"], key["Value"], keys["Value"]]
    assert {row["Type"] for row in (certificate, key, keys)} == {"SecureString"}
    assert "PRIVATE KEY" in secrets[1]
    assert token not in template + "".join(secrets)
    assert secrets[1].splitlines()[1] not in template
    pem = x509.load_pem_x509_certificate(secrets[0].encode())
    names = pem.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    reservations = boto3.client("ec2").describe_instances(InstanceIds=instances())["Reservations"]
    public = reservations[0]["Instances"][0]["PublicIpAddress"]
    assert public in map(str, names.get_values_for_type(x509.IPAddress))
    assert f'"{public}:50051"' in (kept(aws) / "target.json").read_text()


def test_a_zone_without_capacity_is_followed_by_the_next(
    aws: AwsServer, up: list[str], deploy: Run
) -> None:
    aws.control(faults=[{"action": "CreateStack", "zone": "us-east-1a", "reason": NO_CAPACITY}])
    said = deploy(*up)
    assert said.code == 0
    assert "us-east-1a has no g6.xlarge free" in said.err
    assert "starting g6.xlarge in us-east-1b" in said.err
    assert len(instances()) == 1


def refusal(action: str, code: str, after: str = "") -> dict[str, str]:
    """A call that AWS refuses."""
    return {"action": action, "code": code, "message": "no"} | ({"after": after} if after else {})


NOT_AUTHORIZED = "User is not authorized to perform iam:CreateRole"
REFUSED = [
    ({"action": "CreateStack", "reason": NO_CAPACITY}, "AWS has no g6.xlarge free"),
    ({"action": "CreateStack", "reason": NO_QUOTA}, "--quota-code L-DB2E81BA"),
    ({"action": "CreateStack", "reason": NOT_AUTHORIZED}, "docs/deploy.md"),
    (refusal("CreateStack", "AccessDenied"), "AWS denies CreateStack"),
    (refusal("DescribeStacks", "Throttling"), "to resume"),
    (refusal("DescribeSubnets", "UnauthorizedOperation"), "AWS denies DescribeSubnets"),
    *(
        ({"action": action, "page": "<html>\nlog in<br>\n"}, "AWS cannot be reached: Unable to")
        for action in ("DescribeSubnets", "GetCallerIdentity", "CreateStack")
    ),
]


@pytest.mark.parametrize(("fault", "says"), REFUSED)
def test_a_refusal_of_aws_says_what_to_do_and_leaves_no_instance(
    fault: dict[str, str], says: str, aws: AwsServer, up: list[str], deploy: Run
) -> None:
    aws.control(faults=[fault])
    ended = deploy(*up)
    ended.assert_failed(says)
    assert instances() == []
    aws.control(faults=[])
    assert boto3.client("cloudformation", region_name=REGION).describe_stacks()["Stacks"] == []
    assert not kept(aws).exists()
    made = fault["action"] == "CreateStack"
    assert ("s3://outrider-123456789012-us-east-1 keeps what" in ended.err) == made


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (refusal("PutParameter", "AccessDenied"), "`outrider deploy down demo` removes it"),
        (refusal("PutParameter", "ThrottlingException"), "`outrider deploy down demo` removes it"),
        (refusal("SendCommand", "AccessDeniedException"), "`outrider deploy down demo` removes it"),
        (refusal("DescribeStacks", "Throttling", "CreateStack"), "may still be running"),
        (None, "FAILED at: model"),
    ],
    ids=str,
)
def test_a_failure_after_the_start_says_that_an_instance_is_paid_for_and_the_same_command_goes_on(
    fault: dict[str, str] | None, told: str, aws: AwsServer, up: list[str], deploy: Run
) -> None:
    aws.control(faults=[fault] if fault else [], host=SERVING if fault else FAILED)
    ended = deploy(*up)
    ended.assert_failed()
    assert told in ended.err
    assert "still be running and billed" in ended.err
    (before,) = instances()
    aws.control(faults=[], host=SERVING)
    assert main(up) == 0
    assert instances() == [before]


def test_a_target_is_not_mistaken_for_one_of_another_region_name_or_market(
    aws: AwsServer, up: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deploy: Run
) -> None:
    assert main(up) == 0
    (before,) = instances()
    for words in (["down", "demo"], up):
        deploy(*words, "--region", "eu-west-1").assert_failed("demo was started in us-east-1")
    assert (kept(aws) / "token").is_file(), "its credentials are lost"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_CONFIG_HOME", str(tmp_path / "another machine"))
        asked = deploy("down", "demo", "--region", "eu-west-1")
        asked.assert_failed("it runs in us-east-1: --region us-east-1")
        assert main(["down", "absent"]) == 1
    assert instances() == [before]
    deploy(*up, "--spot").assert_failed("Market on-demand", "spot")
    bucket = deploy("down", "other", "--with_bucket")
    bucket.assert_failed("outrider-demo may need what the bucket holds")


def test_an_image_that_is_gone_is_reported_before_anything_is_made(
    aws: AwsServer, up: list[str], deploy: Run
) -> None:
    gone = ["--image", "/aws/service/neuron/none/latest/image_id"]
    refused = deploy(*up[:4], *gone, *up[6:])
    refused.assert_failed("the machine image is gone", "(for Neuron /aws/service/neuron/")
    assert "CreateStack" not in aws.control()["called"]


@pytest.mark.parametrize("then", ["up", "down"])
def test_a_start_that_was_killed_before_the_handover_goes_on_or_can_be_removed(
    aws: AwsServer, up: list[str], then: str
) -> None:
    aws.control(faults=[{"action": "PutParameter", "seconds": 10}])
    killed(aws, up, after="PutParameter")
    before = instances()
    assert len(before) == 1
    aws.control(faults=[])
    assert main(up if then == "up" else ["down", "demo"]) == 0
    assert instances() == (before if then == "up" else [])
    assert (kept(aws) / "token").is_file() == (then == "up")


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


def test_a_host_that_ended_itself_is_started_anew(
    aws: AwsServer, up: list[str], deploy: Run
) -> None:
    assert main(up) == 0
    (first,), token = instances(), (kept(aws) / "token").read_text()
    boto3.client("ec2", region_name=REGION).terminate_instances(InstanceIds=[first])
    told = deploy("status", "demo")
    assert (told.code, "terminated" in told.out) == (1, True)
    assert main(up) == 0
    assert instances() != [first]
    assert (kept(aws) / "token").read_text() != token


def test_a_stack_that_outrider_did_not_make_is_left_alone(up: list[str], deploy: Run) -> None:
    cloudformation = boto3.client("cloudformation")
    topic = {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}
    cloudformation.create_stack(
        StackName="outrider-demo",
        TemplateBody=json.dumps(topic),
        Capabilities=["CAPABILITY_IAM"],  # which the stand-in demands of every stack
    )
    try:
        for words in (up, ["down", "demo"], ["status", "demo"]):
            deploy(*words).assert_failed("was not made by Outrider")
        (stack,) = cloudformation.describe_stacks(StackName="outrider-demo")["Stacks"]
        assert stack["StackStatus"] == "CREATE_COMPLETE"
    finally:
        cloudformation.delete_stack(StackName="outrider-demo")


def test_nothing_is_started_unasked_where_nobody_can_be_asked(
    aws: AwsServer, up: list[str], deploy: Run
) -> None:
    deploy(*up[:-1]).assert_failed("--yes starts")
    assert not {"CreateStack", "CreateBucket"} & set(aws.control()["called"])
