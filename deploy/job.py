"""A job: commands that run once on an EC2 instance. The instance is started, watched, and finally
removed, even after a failure.

Like a target, a job has its own stack. It writes log, state and results to the bucket
(deploy/host/user_data.py). If the connection to this machine is lost, the instance powers itself
off after its commands or at the end of its lifetime.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from compile.aws import Aws
from compile.compile_options import JobOptions
from deploy.bucket import HostBucket, put_wheel
from deploy.ec2 import describe_instance, living_instance, with_image
from deploy.handover import hub_token_parameter, put_hub_token, withdraw_secrets
from deploy.host.user_data import JobSettings, job_script
from deploy.instance import Host, InstanceKind
from deploy.plan import ask, ask_aws, plan_text
from deploy.prices import cost_so_far
from deploy.stack import StackState, TargetStack, Wait, start_stack
from inference.command import say
from inference.errors import OutriderError, Unavailable

POLL_SECONDS = 5.0


@dataclass(frozen=True)
class HostJob:
    """A job on an instance, with the location of its reports."""

    what: str  # "build" or "proof", for messages
    host: Host
    bucket: str
    commands: tuple[tuple[str, ...], ...]  # arguments of `python -m`
    wheel: str | None = None  # Outrider's wheel for the instance; None builds one
    venv: str | None = None  # of the machine image
    needs_token: bool = False  # whether one of its models needs a Hugging Face token
    notes: Mapping[str, str] = field(default_factory=dict)  # additional rows of the plan

    @property
    def reports(self) -> str:
        """The prefix in the bucket to which the instance writes."""
        return f"builds-of/{self.host.name}"

    def read(self, aws: Aws, name: str) -> bytes | None:
        """Return a file that the instance has written; None if it does not exist."""
        return HostBucket(aws, self.bucket).read(f"{self.reports}/{name}")

    def results(self, aws: Aws) -> dict[str, bytes]:
        """Return the result files of the commands, by relative path."""
        prefix, bucket = f"{self.reports}/results/", HostBucket(aws, self.bucket)
        names = [key.removeprefix(prefix) for key in bucket.sizes(prefix)]
        inside = [name for name in names if name and not {"/", ".."} & {*PurePosixPath(name).parts}]
        return {name: bucket.read(prefix + name) or b"" for name in inside}


def job_host(
    aws: Aws,
    what: str,
    instance: str,
    options: JobOptions,
    *,
    image: str | None = None,
    disk_gib: int | None = None,
) -> Host:
    """Return the host of a job on this instance type, which may write to the account's bucket.

    image, disk_gib: defaults in place of those of the instance's kind
    """
    kind = InstanceKind(instance)
    host = Host(
        f"{what}-{secrets.token_hex(4)}",
        aws.region,
        kind,
        "spot" if options.spot else "on-demand",
        options.image or image or kind.image,
        disk_gib or kind.disk_gib,
        options.lifetime_hours,
        {"Purpose": "build"},
    )
    return with_image(aws, host)


def prepare(aws: Aws, job: HostJob, *, dry_run: bool, confirmed: bool) -> Callable[[], str] | None:
    """Print the plan, ask for confirmation if needed, and upload the files for the instance.

    Returns a function that runs the job, or None if nothing is to be started. It returns the digest
    of the artefact, empty if none was built, and raises Unavailable if the job failed.
    """
    host, offer = job.host, ask_aws(aws, job.host)
    rows = {
        **offer.rows(),
        "runs": "; ".join(f"python -m {' '.join(words)}" for words in job.commands),
        "hub": "your token: a SecureString, deleted when read" if job.needs_token else "",
        **job.notes,
        "stack": f"{host.stack}: removed after the {job.what}, even if it fails",
        "ends": f"by itself within {host.lifetime_hours:g} h (--lifetime_hours)",
    }
    print(plan_text(rows), flush=True)
    if dry_run or not (confirmed or ask()):
        return None
    bucket = HostBucket(aws, job.bucket)
    bucket.make()
    url, sha256 = put_wheel(bucket, job.wheel)
    script = job_script(
        JobSettings(
            region=aws.region,
            wheel=url,
            wheel_sha256=sha256,
            commands=job.commands,
            reports=f"s3://{job.bucket}/{job.reports}",
            hub_token=hub_token_parameter(host.name) if job.needs_token else None,
            venv=job.venv,
            lifetime_hours=host.lifetime_hours,
        )
    )

    def run() -> str:
        try:
            if job.needs_token:
                put_hub_token(aws, host.name)
            return _wait(aws, job, start_stack(aws, host, offer.places, script, job.bucket))
        finally:
            _remove(aws, job)

    return run


def _remove(aws: Aws, job: HostJob) -> None:
    stack = TargetStack(aws, job.host.stack)
    try:
        state = stack.state()
        if state is not None:
            say(f"removing {stack.name}")
            stack.remove(state)
        withdraw_secrets(aws, job.host.name)
    except (OutriderError, KeyboardInterrupt):
        say(
            f"{stack.name} was not removed: `outrider deploy down {job.host.name}` "
            f"does it; its instance ends itself after {job.host.lifetime_hours:g} h"
        )
        raise
    if state is not None:
        say(f"{stack.name} is removed; its log is s3://{job.bucket}/{job.reports}/log.txt")
        say(f"cost of the {job.what}: {cost(aws, state)}")


def cost(aws: Aws, state: StackState) -> str:
    """Return the job's cost, or the reason why it is not known."""
    try:
        instance = describe_instance(aws, state.instance_id) if state.instance_id else None
    except OutriderError as error:  # an error here must not hide the job's result
        return f"not known: {error}"
    return cost_so_far(instance, aws.region) if instance else "nothing, it had no instance"


def _wait(aws: Aws, job: HostJob, state: StackState) -> str:
    """Wait for the job's end; return the reported digest. Raises Unavailable if the job failed."""
    wait = Wait(state.instance_id or job.what)
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
        living_instance(aws, state.instance_id or "")
        wait.report(status["step"])
        time.sleep(POLL_SECONDS)
