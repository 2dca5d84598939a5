"""A job: commands that an instance of EC2 runs once. It is started, followed, and removed whatever
comes of it.

The instance has a stack of its own, as a target has, and writes its log, its state and its results
to the bucket (deploy/host/user_data.py). If this machine is lost, the instance ends itself at the
end of its commands, or of its lifetime.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compile.compile_options import JobOptions
from deploy.aws import Aws
from deploy.bucket import HostBucket, put_wheel
from deploy.deployment import Deployment, hub_token_parameter
from deploy.handover import put_hub_token, withdraw_secrets
from deploy.host.user_data import JobSettings, job_script
from deploy.instance_kind import InstanceKind
from deploy.instance_price import InstancePrices, NoPrice, cost_so_far
from deploy.launch import Launch
from deploy.places import SubnetInZone, find_image, places_for
from deploy.running_instance import describe_instance, living_instance
from deploy.stack import StackState, TargetStack
from inference.command import glance, say
from inference.errors import InvalidRequest, OutriderError, Unavailable

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
    notes: tuple[str, ...] = ()  # lines of the plan that this job has beside those of every job

    @property
    def reports(self) -> str:
        """The prefix of the bucket that the instance writes to."""
        return f"builds-of/{self.deployment.name}"

    def read(self, aws: Aws, name: str) -> bytes | None:
        """A file that the instance has reported; None where there is none."""
        return HostBucket(aws, self.bucket).read(f"{self.reports}/{name}")


def job_deployment(
    aws: Aws, what: str, instance: str, options: JobOptions, **more: Any
) -> Deployment:
    """The deployment of a job on this instance type. more: further fields"""
    fields: dict[str, Any] = {"image": options.image} | more
    return Deployment(
        name=f"{what}-{secrets.token_hex(4)}",
        region=aws.region,
        instance=InstanceKind(instance),
        purpose="build",
        market="spot" if options.spot else "on-demand",
        lifetime_hours=options.lifetime_hours,
        **fields,
    )


class Start(NamedTuple):
    """Where the instance can be started, and with what user data."""

    places: Sequence[SubnetInZone]
    user_data: str


def prepare(aws: Aws, job: HostJob, *, dry_run: bool, confirmed: bool) -> Start | None:
    """Print the plan, ask unless it is confirmed, and put into the bucket what the instance needs.
    Returns None where nothing is to be started.
    """
    places = places_for(aws, job.deployment.instance, None)
    find_image(aws, job.deployment.image_parameter)
    print(*_plan_lines(job, places[0].zone), sep="\n", flush=True)
    if dry_run or not (confirmed or ask()):
        return None
    bucket, deployment = HostBucket(aws, job.bucket), job.deployment
    bucket.make()
    url, sha256 = put_wheel(bucket, job.wheel)
    settings = JobSettings(
        region=aws.region,
        wheel=url,
        wheel_sha256=sha256,
        commands=job.commands,
        reports=f"s3://{job.bucket}/{job.reports}",
        hub_token=hub_token_parameter(deployment.name) if job.needs_token else None,
        venv=job.venv,
        lifetime_hours=deployment.lifetime_hours,
    )
    return Start(places, job_script(settings))


def run_job(aws: Aws, job: HostJob, start: Start) -> str:
    """Start the instance, wait for the end of its commands, and remove it. Returns the digest of
    what it built; empty where it built nothing. Raises Unavailable where it failed.
    """
    try:
        if job.needs_token:
            put_hub_token(aws, job.deployment.name)
        state = Launch(aws, job.deployment).start(start.places, start.user_data, job.bucket)
        return _wait(aws, job, state)
    finally:
        _remove(aws, job)


def ask() -> bool:
    """Whether the user wants to pay for it. Raises InvalidRequest where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InvalidRequest(
            "nothing was started: stdin is no terminal, so nobody can be asked; --yes starts"
        )
    return input("start this? [y/N] ").strip().lower() in ("y", "yes")


def _plan_lines(job: HostJob, zone: str) -> Iterator[str]:
    """What is going to be started, when it ends itself, and what it costs at most."""
    deployment = job.deployment
    yield f"instance    {deployment.instance.name}, {deployment.market}, in {zone}"
    yield f"image       {deployment.image_parameter}"
    yield f"volume      {deployment.volume_gib} GiB gp3, encrypted, deleted with the instance"
    yield from (f"runs        python -m {' '.join(words)}" for words in job.commands)
    if job.needs_token:
        yield "token       yours of the hub: a SecureString, which the instance reads and deletes"
    yield from job.notes
    yield f"stack       {deployment.stack}: removed after the {job.what}, whatever comes of it"
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


def _remove(aws: Aws, job: HostJob) -> None:
    """Remove the job's stack and secrets, and say what the instance has cost."""
    stack = TargetStack(aws, job.deployment.stack)
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


def _wait(aws: Aws, job: HostJob, state: StackState) -> str:
    """Wait for the end. Returns the digest that is reported. Raises Unavailable for a failure."""
    began = time.monotonic()
    while True:
        status = {"state": "running", "step": "starting", "digest": ""}
        status |= json.loads(job.read(aws, "status.json") or b"{}")
        if status["state"] == "built":
            return status["digest"]
        if status["state"] == "failed":
            log = (job.read(aws, "log.txt") or b"").decode("utf-8", "replace").splitlines()
            raise Unavailable(
                "\n".join([f"the {job.what} failed at: {status['step']}", *log[-15:]])
            )
        instance = living_instance(aws, state.instance_id or "")
        glance(f"{instance.instance_id}: {status['step']}, {time.monotonic() - began:.0f} s")
        time.sleep(POLL_SECONDS)
