"""`outrider deploy logs`: what a target's host logged."""

from __future__ import annotations

import base64
from typing import Literal

from deploy.aws import Aws, aws_refusals
from deploy.commands.options import NamedOptions
from deploy.deployment import stack_name
from deploy.running_instance import run_on_host
from deploy.stack import TargetStack
from inference.command import say
from inference.errors import InvalidRequest, Unavailable

EXAMPLES = """examples:
  outrider deploy logs demo                  the target's own log
  outrider deploy logs demo --of setup       how the host was set up
  outrider deploy logs demo --of console     what EC2 kept; also of a host that ended lately
"""

_LINES = 200
_COMMANDS = {
    "target": f"journalctl --no-pager --unit outrider-target.service --lines {_LINES}",
    "setup": f"tail -n {_LINES} /var/log/cloud-init-output.log",
}


class LogsOptions(NamedOptions, title="target"):
    """Print what a target's host logged. Systems Manager brings up to 24,000 characters; no log
    leaves the host otherwise.
    """

    of: Literal["target", "setup", "console"] = "target"
    """whose log"""


def run(options: LogsOptions) -> int:
    """Print the log. Returns 0."""
    aws = options.aws()
    state = TargetStack(aws, stack_name(options.name)).state()
    if state is None or state.instance_id is None:
        raise InvalidRequest(f"{options.name} has no instance in {aws.region}")
    if options.of == "console":
        print(_console(aws, state.instance_id))
        return 0
    command = _COMMANDS[options.of]
    try:
        print(run_on_host(aws, state.instance_id, command))
    except Unavailable as error:
        say(f"{error}; this is what EC2 kept of the console:")
        print(_console(aws, state.instance_id))
    return 0


def _console(aws: Aws, instance_id: str) -> str:
    """The last lines of the instance's console, which EC2 keeps for an hour after its end."""
    with aws_refusals():
        kept = aws.client("ec2").get_console_output(InstanceId=instance_id)
    text = base64.b64decode(kept.get("Output", "")).decode(errors="replace")
    return "\n".join(text.splitlines()[-_LINES:]) or "EC2 has no console output of it yet"
