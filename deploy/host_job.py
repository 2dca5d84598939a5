"""Commands that an instance of EC2 runs once: started, followed, and removed whatever comes of it.

The instance has a stack of its own, as a target has, and writes its log, its state and its results
to the bucket (deploy/host/user_data.py). If this machine is lost, the instance ends itself at the
end of its commands, or of its lifetime.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deploy.aws import Aws
from deploy.bucket import HostBucket, put_wheel
from deploy.deployment import Deployment, hub_token_parameter
from deploy.handover import put_hub_token, withdraw_secrets
from deploy.host.user_data import JobSettings, job_script
from deploy.instance_price import InstancePrices, NoPrice, cost_so_far
from deploy.launch import Launch
from deploy.places import SubnetInZone
from deploy.running_instance import describe_instance, living_instance
from deploy.stack import StackState, TargetStack
from inference.command import glance, say
from inference.errors import OutriderError, Unavailable

POLL_SECONDS = 5.0


@dataclass(frozen=True)
class HostJob:
    """A job of an instance, and where its reports go."""

    what: str  # build or proof, for messages
    deployment: Deployment
    bucket: str
    commands: tuple[tuple[str, ...], ...]  # words behind `python -m`
    wheel: str | None = None  # file of Outrider for the instance; None builds one
    venv: str | None = None  # of the machine image
    needs_token: bool = False  # of the hub, for one of its models

    @property
    def reports(self) -> str:
        """The prefix of the bucket that the instance writes to."""
        return f"builds-of/{self.deployment.name}"


def prepare(aws: Aws, job: HostJob) -> str:
    """Put into the bucket what the instance needs; returns its user data."""
    bucket, deployment = HostBucket(aws, job.bucket), job.deployment
    bucket.make()
    url, sha256 = put_wheel(bucket, job.wheel)
    return job_script(
        JobSettings(
            region=aws.region,
            wheel=url,
            wheel_sha256=sha256,
            commands=job.commands,
            reports=f"s3://{job.bucket}/{job.reports}",
            hub_token=hub_token_parameter(deployment.name) if job.needs_token else None,
            venv=job.venv,
            lifetime_hours=deployment.lifetime_hours,
        )
    )


def run_job(aws: Aws, job: HostJob, places: Sequence[SubnetInZone], user_data: str) -> str:
    """Start the instance, wait for the end of its command, and remove it. Returns the digest of
    what it built; empty where it built nothing. Raises Unavailable where it failed.
    """
    launch = Launch(aws, job.deployment)
    with removed_afterwards(aws, job):
        if job.needs_token:
            put_hub_token(aws, job.deployment.name)
        state = launch.start(places, user_data, job.bucket)
        return wait(aws, job, state)


def end_lines(deployment: Deployment) -> Iterator[str]:
    """Lines of a plan: when the instance ends itself, and what it costs at most."""
    yield f"ends        itself after {deployment.lifetime_hours:g} h at most (--lifetime_hours)"
    try:
        price = InstancePrices().find(
            deployment.instance.name, deployment.region, deployment.market
        )
    except NoPrice as error:
        yield f"$/h         {error}"
        return
    most = price.usd_per_hour * deployment.lifetime_hours
    yield f"$/h         {price}; at most ${most:.2f} in all, for the instance alone"


@contextmanager
def removed_afterwards(aws: Aws, job: HostJob) -> Iterator[None]:
    """Removes the job's stack at the end, also after an error or Ctrl-C, and says what the
    instance has cost.
    """
    stack = TargetStack(aws, job.deployment.stack)
    try:
        yield
    finally:
        try:
            state = stack.state()
            if state is not None:
                say(f"removing {stack.name}")
                stack.remove(state)
            withdraw_secrets(aws, job.deployment.name)
        except (OutriderError, KeyboardInterrupt):
            say(
                f"{stack.name} was not removed: `outrider deploy down {job.deployment.name}` "
                f"does it; its instance ends itself after {job.deployment.lifetime_hours:g} h"
            )
            raise
        if state is not None:
            say(f"{stack.name} is removed; its log is s3://{job.bucket}/{job.reports}/log.txt")
            say(f"cost of the {job.what}: {cost(aws, state)}")


def cost(aws: Aws, state: StackState) -> str:
    """The job's cost, or the reason why it is not known."""
    try:
        instance = describe_instance(aws, state.instance_id) if state.instance_id else None
    except OutriderError as error:  # it must not hide what came of the job
        return f"not known: {error}"
    return cost_so_far(instance, aws.region) if instance else "nothing, it had no instance"


def wait(aws: Aws, job: HostJob, state: StackState) -> str:
    """Wait for the end. Returns the digest that is told. Raises Unavailable for a failure."""
    began = time.monotonic()
    while True:
        told = _status(aws, job)
        if told["state"] == "built":
            return told["digest"]
        if told["state"] == "failed":
            raise Unavailable(f"the {job.what} failed at: {told['step']}\n{_log(aws, job)}")
        instance = living_instance(aws, state.instance_id or "")
        glance(f"{instance.instance_id}: {told['step']}, {time.monotonic() - began:.0f} s")
        time.sleep(POLL_SECONDS)


def _status(aws: Aws, job: HostJob) -> dict[str, str]:
    content = HostBucket(aws, job.bucket).read(f"{job.reports}/status.json")
    told: dict[str, str] = json.loads(content) if content else {}
    return {"state": "running", "step": "starting", "digest": ""} | told


def _log(aws: Aws, job: HostJob) -> str:
    """The last lines of what the instance printed."""
    content = HostBucket(aws, job.bucket).read(f"{job.reports}/log.txt") or b""
    return "\n".join(content.decode("utf-8", "replace").splitlines()[-15:])
