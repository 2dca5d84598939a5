"""`outrider deploy status`: a target's stack, instance, health and cost, and the commands that show
its logs and open a tunnel to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from compile.aws import Aws
from deploy.commands.options import NamedOptions
from deploy.ec2 import RunningInstance, describe_instance, progress
from deploy.handover import secrets_waiting
from deploy.host.user_data import PORT
from deploy.instance import stack_name
from deploy.prices import cost_so_far
from deploy.stack import TargetStack
from grpc_comm.client.named_targets import find_target
from inference.command import FAILED
from inference.errors import OutriderError, Unavailable

EXAMPLES = """examples:
  outrider deploy status demo
"""

_LOGS = {
    "log": "sudo journalctl --no-pager --unit outrider-target.service --lines 100",
    "setup log": "sudo tail -n 100 /var/log/cloud-init-output.log",
}


class StatusOptions(NamedOptions, title="target"):
    """Print a target's stack, instance, health and cost, and the commands that show its logs and
    open a tunnel to it.
    """


def run(options: StatusOptions) -> int:
    """Print the target's state. Returns 1 if it is not running."""
    aws = options.aws()
    state = TargetStack(aws, stack_name(options.name)).state()
    if state is None:
        print(f"{options.name}: there is no stack {stack_name(options.name)} in {aws.region}")
        return FAILED
    print(f"stack       {stack_name(options.name)} in {aws.region}: {state.status}")
    instance = describe_instance(aws, state.instance_id) if state.instance_id else None
    if instance is None:
        print("instance    none: `outrider deploy up` resumes, `outrider deploy down` removes all")
        return FAILED
    print(*_instance_lines(aws, options.name, instance), sep="\n")
    for label, command in host_commands(options.name, aws.region, instance).items():
        print(f"{label:<12}{command}")
    return 0 if instance.alive else FAILED


def _instance_lines(aws: Aws, name: str, instance: RunningInstance) -> Iterator[str]:
    where = f"{instance.type} in {instance.zone}, {instance.market}"
    yield f"instance    {instance.instance_id}: {instance.state}, {where}"
    if not instance.alive:
        yield f"ended by    {instance.ended_by}; `outrider deploy down {name}` removes the stack"
        return
    yield f"ends        {instance.ends_at or 'unknown'} at the latest"
    try:
        yield f"host        {progress(aws, instance.instance_id).words}"
    except Unavailable as error:
        yield f"host        {error}"
    waiting = secrets_waiting(aws, name)
    if waiting:
        yield f"secrets     the host has not taken {', '.join(waiting)}"
    yield f"reached     {_reached(name)}"
    yield f"cost        {cost_so_far(instance, aws.region)}"


def host_commands(name: str, region: str, instance: RunningInstance) -> dict[str, str]:
    """Return commands of the AWS CLI for the instance, by purpose. A session needs the Session
    Manager plugin, and no open port.
    """
    place = f"--region {region} --target {instance.instance_id}"
    session = f"aws ssm start-session {place} --document-name AWS-Start"
    if not instance.alive:  # EC2 keeps the console output for an hour
        flags = f"--region {region} --instance-id {instance.instance_id} --output text"
        return {"console": f"aws ec2 get-console-output {flags}"}
    commands = {
        label: f"{session}NonInteractiveCommand --parameters '{json.dumps({'command': [line]})}'"
        for label, line in _LOGS.items()
    }
    target = find_target(name)
    if target is not None and target.reached.loopback:
        ports = f"portNumber={PORT},localPortNumber={target.reached.port}"
        commands["tunnel"] = f"{session}PortForwardingSession --parameters {ports}"
    return commands


def _reached(name: str) -> str:
    target = find_target(name)
    if target is None or not target.complete:
        return "this machine has no credentials for it"
    from grpc_comm.client.connection import list_models
    from grpc_comm.security import SecurityOptions

    security = SecurityOptions(tls_ca=target.ca_file, token_file=target.token_file)
    try:
        models = list_models(target.address, security=security)
    except OutriderError as error:
        tunnel = " (open the tunnel below)" if target.reached.loopback else ""
        return f"not from here{tunnel}: {error}"
    return f"at {target.address}, serving {', '.join(models)}"
