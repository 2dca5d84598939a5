"""`outrider deploy tunnel`: leads a port of this machine to a target, until it is interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.aws import Aws, aws_refusals
from deploy.commands.options import NamedOptions
from deploy.deployment import stack_name
from deploy.stack import TargetStack
from grpc_comm.client.named_targets import read_target
from inference.command import say
from inference.errors import InvalidRequest

EXAMPLES = """examples:
  outrider deploy tunnel demo        and in another shell: outrider chat --target demo
"""


class TunnelOptions(NamedOptions, title="target"):
    """Lead a port of this machine to a target through AWS Systems Manager, until Ctrl-C. No port
    of the host is open.
    """


def run(options: TunnelOptions) -> int:
    """Keep the tunnel open. Returns the plugin's exit code."""
    target = read_target(options.name)
    if not target.reached.loopback:
        raise InvalidRequest(
            f"{target.name} is reached at {target.address}, without a tunnel: "
            f"outrider chat --target {target.name}"
        )
    aws = options.aws()
    state = TargetStack(aws, stack_name(target.name)).state()
    if state is None or state.instance_id is None:
        raise InvalidRequest(f"{target.name} has no instance in {aws.region}")
    port, local_port = int(state.parameters["Port"]), target.reached.port
    with open_tunnel(aws, state.instance_id, port, local_port) as tunnel:
        say(f"{target.address} leads to {target.name}; Ctrl-C closes it")
        return tunnel.wait()


PLUGIN = "session-manager-plugin"
NO_PLUGIN = (
    f"a tunnel needs AWS's {PLUGIN}, which is not installed here: see AWS's page 'Install the "
    "Session Manager plugin for the AWS CLI'"
)
_DOCUMENT = "AWS-StartPortForwardingSession"
_RESPONSE = "AWS_SSM_START_SESSION_RESPONSE"
"""Variable that holds the session's secrets; arguments could be read by others of this machine."""


@contextmanager
def open_tunnel(
    aws: Aws, instance_id: str, port: int, local_port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Lead this machine's local_port to the host's port until the context ends.

    The value is AWS's plugin, which carries the traffic and prints what it does. Raises
    InvalidRequest where the plugin is not installed.
    """
    plugin = shutil.which(PLUGIN)
    if plugin is None:
        raise InvalidRequest(
            f"{NO_PLUGIN}. Without it, `outrider deploy up --allow_cidr` opens the port to one "
            "network"
        )
    asked = {
        "Target": instance_id,
        "DocumentName": _DOCUMENT,
        "Parameters": {"portNumber": [str(port)], "localPortNumber": [str(local_port)]},
    }
    client = aws.client("ssm")
    with aws_refusals():
        session = client.start_session(**asked)
    granted = {key: session[key] for key in ("SessionId", "StreamUrl", "TokenValue")}
    command = [plugin, _RESPONSE, aws.region, "StartSession", "", json.dumps(asked)]
    process = subprocess.Popen(  # noqa: S603 (the user's own program)
        [*command, client.meta.endpoint_url], env=os.environ | {_RESPONSE: json.dumps(granted)}
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        with aws_refusals():
            client.terminate_session(SessionId=session["SessionId"])
