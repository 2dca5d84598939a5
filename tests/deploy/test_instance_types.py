"""Instance types: what EC2 reports wrongly is corrected, and what it does not know is refused."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from moto import mock_aws

from deploy.aws import Aws
from deploy.instance_types import DEVICE_GIB, bundled_types, find_type, read_type
from tests.support.refusals import assert_refused


@pytest.fixture
def ec2(aws_keys: None) -> Any:
    """EC2 of moto, whose instance types are those that AWS described one day."""
    with mock_aws():
        yield boto3.client("ec2", region_name="us-east-1")


def test_trainium2_has_96_gib_although_ec2_says_512(ec2: Any) -> None:
    described = ec2.describe_instance_types(InstanceTypes=["trn2.48xlarge"])["InstanceTypes"][0]
    said = described["NeuronInfo"]["NeuronDevices"][0]["MemoryInfo"]["SizeInMiB"]
    corrected = read_type(described)
    assert said == 524288, "EC2 reports it rightly now: the correction can go"
    assert corrected.device_gib == DEVICE_GIB["Trainium2"] == 96
    assert corrected.accelerators == "16 Trainium2: 128 cores, 1536 GiB"


@pytest.mark.parametrize("name", ["trn1.2xlarge", "trn1.32xlarge", "trn2.48xlarge", "inf2.xlarge"])
def test_the_bundled_types_are_as_ec2_describes_them_but_for_the_corrections(
    name: str, ec2: Any
) -> None:
    described = ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"][0]
    assert bundled_types()[name] == read_type(described)


def test_a_type_without_accelerators_has_none_and_one_that_ec2_does_not_describe_is_refused(
    ec2: Any,
) -> None:
    host = find_type(Aws("us-east-1"), "r5.2xlarge")
    assert (host.vcpus, host.memory_gib, host.accelerators) == (8, 64, "")
    assert_refused(lambda: find_type(Aws("us-east-1"), "trn3.48xlarge"), ["trn3"])
