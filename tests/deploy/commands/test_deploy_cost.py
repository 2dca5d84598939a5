"""`outrider deploy cost` reads a run from AWS's records and computes its bill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from deploy.__main__ import main
from deploy.run_bill import Run
from deploy.running_instance import RunningInstance

NOW = datetime.now(timezone.utc)
TEMPLATE = {
    "Parameters": {"DiskGiB": {"Type": "Number"}, "Bucket": {"Type": "String"}},
    "Resources": {
        "Instance": {
            "Type": "AWS::EC2::Instance",
            "Properties": {"ImageId": "ami-12c6146b", "InstanceType": "trn1.2xlarge"},
        }
    },
    "Outputs": {"InstanceId": {"Value": {"Ref": "Instance"}}},
}
PRICES = {
    "schema": 1,
    "prices": [
        {
            "instance_type": "trn1.2xlarge",
            "region": "us-east-1",
            "usd_per_hour": 3600.0,
            "as_of": "2026-11-22",
        }
    ],
}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        yield boto3.Session(region_name="us-east-1")


def start(aws: Any, bucket: str) -> None:
    """A stack with an instance, and a kilobyte in its bucket."""
    aws.client("s3").create_bucket(Bucket=bucket)
    aws.client("s3").put_object(Bucket=bucket, Key="wheel", Body=b"x" * 1000)
    parameters = [
        {"ParameterKey": "DiskGiB", "ParameterValue": "250"},
        {"ParameterKey": "Bucket", "ParameterValue": bucket},
    ]
    aws.client("cloudformation").create_stack(
        StackName="outrider-demo",
        TemplateBody=json.dumps(TEMPLATE),
        Parameters=parameters,
        Tags=[{"Key": "outrider:target", "Value": "demo"}],
    )


def test_the_bill_of_a_run_is_that_of_its_seconds_volume_and_bytes(
    aws: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(aws, "outrider-123456789012-us-east-1")
    path = tmp_path / "prices.json"
    path.write_text(json.dumps(PRICES))
    assert main(["cost", "demo", "--no_live", "--json", "--price_file", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    seconds = told["seconds"]
    assert 0 <= seconds < 60
    paid = {line["what"]: line["usd"] for line in told["lines"]}
    assert paid == {
        "trn1.2xlarge, on-demand": pytest.approx(60.0),  # a minute at least, at a dollar a second
        "gp3-volume": pytest.approx(250 * 60 / 3600 / 730 * 0.08),
        "public-ipv4": pytest.approx(seconds / 3600 * 0.005),
        "traffic-out": 0,
        "s3-storage": pytest.approx(1000 / 2**30 * seconds / 3600 / 730 * 0.023),
    }
    assert told["usd"] == pytest.approx(sum(paid.values()))
    assert told["unknown"] == []


def test_the_table_names_each_line_its_source_and_an_hours_price(
    aws: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    start(aws, "somebodys-bucket")
    assert main(["cost", "demo", "--no_live"]) == 0
    printed = capsys.readouterr().out
    assert "trn1.2xlarge, on-demand: 0.0166667 h, $0.0224 (snapshot: AWS price list" in printed
    assert "not in the sum: s3-storage: not counted" in printed
    assert "so far: at least $0.0" in printed
    assert "an hour: $1.3761" in printed  # 1.34375 + 250 x 0.08 / 730 + 0.005


def test_a_target_without_an_instance_has_no_bill(
    aws: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cost", "demo", "--no_live"]) == 1
    assert "demo has no instance in us-east-1" in capsys.readouterr().err


def test_a_run_ends_when_ec2_says_that_its_instance_ended() -> None:
    began = NOW - timedelta(hours=5)
    ended = began + timedelta(hours=2)
    instance = RunningInstance(
        "i-1", "trn1.2xlarge", "terminated", "us-east-1b", "", began, {}, "by its timer", ended
    )
    assert Run(instance, 250, "outrider-x", NOW).seconds == 2 * 3600
