"""What a host serves: an artefact's manifest from its store, checked against the instance, and the
speed that is computed from it. Instance types as EC2 describes them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from compile.aws import Aws
from compile.plan.pass_seconds import pass_seconds
from compile.request import find_checkpoint, make_request
from deploy.commands.options import UpOptions
from deploy.instance.kind import NEURON_BASE_IMAGE
from deploy.instance.places import host_size, with_image
from deploy.instance.price import bundled_prices
from deploy.plan import computed_speed, read_served
from inference.errors import BadArtifact
from inference.files.artifact import Manifest, write_manifest
from tests.support.artifacts import TRN1, trn1_manifest
from tests.support.refusals import assert_refused


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


# --- instance types


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
    assert with_image(Aws("us-east-1"), host).image_parameter == NEURON_BASE_IMAGE
