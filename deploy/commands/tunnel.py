"""`outrider deploy tunnel`: leads a port of this machine to a target, until it is interrupted."""

from __future__ import annotations

from deploy.commands.options import NamedOptions
from deploy.deployment import stack_name
from deploy.stack import TargetStack
from deploy.tunnel import open_tunnel
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


OPTIONS = TunnelOptions


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
