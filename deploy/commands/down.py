"""`outrider deploy down`: removes a target with all its resources, and lists what remains."""

from __future__ import annotations

from compile.aws import Aws
from deploy.bucket import HostBucket, own_bucket
from deploy.commands.options import NamedOptions
from deploy.handover import secrets_waiting, withdraw_secrets
from deploy.instance import stack_name
from deploy.stack import TAG, TargetStack, stack_names
from grpc_comm.client.named_targets import find_target, forget_target, named_targets
from inference.command import FAILED, nearest
from inference.errors import InvalidRequest

EXAMPLES = """examples:
  outrider deploy down demo
  outrider deploy down demo --with_bucket      also what was uploaded
"""


class DownOptions(NamedOptions, title="target"):
    """Remove a target and all its AWS resources, and list what remains."""

    with_bucket: bool = False
    """also delete Outrider's bucket with the wheels and artefacts of all targets"""


def run(options: DownOptions) -> int:
    """Remove the target. Returns 1 if resources remain or there was nothing to remove. Raises
    InvalidRequest if the target runs in another region, or other targets use the bucket.
    """
    aws = options.aws()
    stack = TargetStack(aws, stack_name(options.name))
    state = stack.state()
    dependents = stack_names(aws) - {stack.name} if options.with_bucket else set()
    if dependents:
        raise InvalidRequest(
            f"--with_bucket: {', '.join(sorted(dependents))} may need what the bucket holds: "
            "remove those first"
        )
    registered = find_target(options.name) is not None
    if state is None:
        if not registered:
            _check_elsewhere(aws, options.name)
        hint = nearest(options.name, set(named_targets()) - {options.name})
        print(f"there is no stack {stack.name} in {aws.region}{hint}")
    else:
        stack.remove(state)
        print(f"removed {stack.name} with its resources")
    withdraw_secrets(aws, options.name)
    forget_target(options.name)
    removed = _bucket(aws, remove=options.with_bucket)
    used = state.parameters.get("Bucket") if state else None
    if used not in (None, own_bucket(aws.account, aws.region)):
        print(f"s3://{used}, which you named, keeps what was put there: its wheels/ and artefacts")
    remains = leftovers(aws, options.name)
    print(f"left of {options.name} in {aws.region}: {', '.join(remains) or 'nothing'}")
    return FAILED if remains or not (state or registered or removed) else 0


def _check_elsewhere(aws: Aws, name: str) -> None:
    prefix = own_bucket(aws.account, "")
    for bucket in aws.rows("s3", "list_buckets", "Buckets"):
        region = bucket["Name"].removeprefix(prefix)
        if region in (bucket["Name"], aws.region):
            continue
        if TargetStack(Aws(region), stack_name(name)).state() is not None:
            raise InvalidRequest(
                f"{name} does not run in {aws.region}, it runs in {region}: --region {region}"
            )


def _bucket(aws: Aws, *, remove: bool) -> bool:
    """Remove the account's bucket, or list its contents. Returns whether it was removed."""
    bucket = HostBucket(aws, own_bucket(aws.account, aws.region))
    if not bucket.exists:
        return False
    if remove:
        bucket.remove()
        print(f"removed s3://{bucket.name}")
        return True
    sizes = bucket.sizes()
    content = f"{len(sizes)} objects, {sum(sizes.values()) / 1e6:.1f} MB"
    print(f"kept s3://{bucket.name} for the next target: {content}; --with_bucket removes it")
    return False


_ALIVE = ["pending", "running", "shutting-down", "stopping", "stopped"]


def leftovers(aws: Aws, target: str) -> list[str]:
    """Return the target's remaining instances, volumes, security groups and parameters."""
    tagged = {"Name": f"tag:{TAG}", "Values": [target]}
    alive = {"Name": "instance-state-name", "Values": _ALIVE}
    reservations = aws.rows("ec2", "describe_instances", "Reservations", Filters=[tagged, alive])
    volumes = aws.rows("ec2", "describe_volumes", "Volumes", Filters=[tagged])
    groups = aws.rows("ec2", "describe_security_groups", "SecurityGroups", Filters=[tagged])
    instances = [row for reservation in reservations for row in reservation["Instances"]]
    return [
        *(f"instance {row['InstanceId']} ({row['State']['Name']})" for row in instances),
        *(f"volume {row['VolumeId']} ({row['Size']} GiB)" for row in volumes),
        *(f"security group {row['GroupId']}" for row in groups),
        *(f"parameter {name}" for name in secrets_waiting(aws, target)),
    ]
