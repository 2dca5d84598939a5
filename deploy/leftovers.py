"""What is left of a target in the account, found without its stack."""

from __future__ import annotations

from deploy.aws import Aws
from deploy.handover import secrets_waiting
from deploy.stack import TAG

_ALIVE = ["pending", "running", "shutting-down", "stopping", "stopped"]


def leftovers(aws: Aws, target: str) -> list[str]:
    """Instances, volumes, security groups and parameters that belong to the target."""
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
