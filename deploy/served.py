"""The artefact that a host is to serve: its manifest, checked against the instance, and its speed
as computed from it.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from compile.plan.device import device_of
from compile.spec import CompileSpec
from compile.store import fetch_manifest, open_store
from deploy.deployment import Deployment
from inference.artifact import Manifest, read_manifest
from inference.errors import InvalidRequest
from inference.model.config import parse_config
from inference.model.hub import PinnedModel, pin_model


class Speed(NamedTuple):
    """Tokens a second of all rows together, and where the figure is from."""

    tokens_per_second: float
    source: str


def read_served(deployment: Deployment) -> Manifest | None:
    """The manifest of the deployment's artefact; None where it serves a model. Of an artefact on S3
    no other file is fetched.

    Raises InvalidRequest where the instance cannot serve it.
    """
    if deployment.artifact is None:
        return None
    if deployment.own_artifact is not None:
        manifest = read_manifest(deployment.own_artifact)
    else:
        with tempfile.TemporaryDirectory(prefix="outrider-") as directory:
            store, digest = open_store(deployment.artifact), deployment.digest or ""
            manifest = fetch_manifest(store, digest, Path(directory))
    instance = deployment.instance
    if manifest.target != instance.compile_target:
        raise InvalidRequest(
            f"the artefact of {manifest.model} is for {manifest.target}, {instance.name} is "
            f"{instance.compile_target}"
        )
    ranks = device_of(manifest.target).instances.get(instance.name)
    if ranks is not None and manifest.tensor_parallel > ranks:
        raise InvalidRequest(
            f"the artefact of {manifest.model} takes {manifest.tensor_parallel} cores, "
            f"{instance.name} has {ranks}"
        )
    return manifest


def pinned_model(deployment: Deployment) -> PinnedModel | None:
    """The commit of the hub's model that is to be served; None where it serves no such model.

    Raises InvalidRequest for one that nobody here may read.
    """
    if deployment.model is None or deployment.model.startswith("s3://"):
        return None
    return pin_model(deployment.model)


def computed_speed(manifest: Manifest) -> Speed | None:
    """Tokens a second without any candidate taken, from the artefact's widest graph of root-only
    forward passes. None for a CPU, and where published passes allow a range of times alone.
    """
    from compile.plan.pass_seconds import pass_seconds
    from compile.plan.plan_report import basis

    graphs = [bucket for bucket in manifest.buckets if bucket.everywhere]
    bucket = max(graphs, key=lambda bucket: (-bucket.nodes, bucket.rows, -bucket.slots))
    spec = CompileSpec.of(manifest)
    time = pass_seconds(parse_config(manifest.config), spec, bucket)
    if time is None or time.seconds is None:
        return None
    load = f"{bucket.rows} texts at once, nothing drafted, {time} a forward pass"
    return Speed(bucket.rows / time.seconds, f"{load}; {basis(spec)}")
