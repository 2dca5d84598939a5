"""A target as a deployment of Ray Serve: one replica for each group of NeuronCores, behind one
ingress.

Ray places and restarts the replicas, counts open sessions, and starts more or fewer. Its HAProxy
carries each session's stream to one replica. What a replica answers, and to whom, is the target's
own code (grpc_comm/server/hosted.py). A client that loses its replica goes on at another one, as it
does anywhere: at the cost of a prefill.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

from grpc_comm.server.hosted import Carrier, HostedTarget, await_routes
from grpc_comm.transport import MAX_MESSAGE_BYTES, Address
from inference.errors import InvalidRequest
from inference.extras import require
from outrider.options.roles import TargetRole
from outrider.target.target import load_target

NAME = "outrider"
"""Name of the application in Ray Serve."""

_SERVICER = "grpc_comm.proto.verifier_pb2_grpc.add_TargetServicer_to_server"
_DEREGISTERED_SECONDS = 5.0
"""Seconds in which the ingress learns that a replica ends, before that one refuses streams."""

ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # a message would change threads twice
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(MAX_MESSAGE_BYTES),  # Ray's own is 2 GB
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_DEREGISTERED_SECONDS),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",  # a busy machine needs more than Ray's own 30 s
}
"""Settings that Ray's processes read when they start. A cluster that runs already must have it."""


class Fleet(NamedTuple):
    """Number of replicas, and the load that each may hold."""

    replicas: int
    most_replicas: int  # more than `replicas`: as many as open sessions ask for
    sessions: int  # of one replica, beyond which another one is started
    waiting: int  # sessions beyond those that a replica may have before it refuses more
    neuron_cores: int  # of one replica; 0 where the device is another one
    cpus: float  # of one replica, as Ray counts them
    ingress: Address
    up_seconds: float  # how long too many sessions are borne
    down_seconds: float  # how long too few are
    grace: float  # time that texts have to end at a replica that goes


class RayTarget:
    """A replica. Ray Serve calls its methods by their names in the protocol."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: those of a target, by name

        Ray sets NEURON_RT_VISIBLE_CORES to this replica's cores before it is made.
        """
        self._hosted = HostedTarget(load_target(TargetRole(**options)))
        self._hosted.begin()

    async def Describe(self, request: Any, grpc_context: Carrier) -> Any:
        """Answer Describe."""
        return await self._hosted.describe(request, grpc_context)

    async def Session(
        self, messages: AsyncIterator[Any], grpc_context: Carrier
    ) -> AsyncIterator[Any]:
        """Answer Session."""
        async for message in self._hosted.session(messages, grpc_context):
            yield message

    async def check_health(self) -> None:
        """Raise where the engine hangs: Ray then puts another replica in place of this one."""
        if self._hosted.hung:
            raise RuntimeError("the engine is in a step that does not end")

    async def __del__(self) -> None:
        """End what is left once Ray has drained the replica."""
        await self._hosted.end()


def start(fleet: Fleet, options: TargetRole, cluster: str | None = None) -> None:
    """Start the fleet and return when its replicas answer.

    cluster: the address of one that runs; None starts one on this machine, for this process

    Raises MissingExtra without Ray, InvalidRequest where this machine is too small, and Unavailable
    where the ingress does not find the replicas.
    """
    os.environ.update(ENVIRONMENT)
    if cluster is None:
        _check_room(fleet)
    require("ray", "a fleet")
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    own: dict[str, Any] = {"include_dashboard": False, "num_cpus": os.cpu_count()}
    ray.init(address=cluster, log_to_driver=False, **({} if cluster else own))
    serve.start(
        http_options=HTTPOptions(host=fleet.ingress.host, port=_unused_port()),
        grpc_options=gRPCOptions(
            port=fleet.ingress.port, grpc_servicer_functions=[_SERVICER], enable_reflection=False
        ),
    )
    given = dict(sorted(options.stated().items()))
    serve.run(_deployment(fleet).bind(given), name=NAME, route_prefix=f"/{NAME}")
    if cluster is None:
        await_routes(fleet.ingress)


def stop() -> None:
    """End the fleet, and the cluster where it was started here. Texts have their grace."""
    import ray
    from ray import serve

    serve.shutdown()
    ray.shutdown()


def _check_room(fleet: Fleet) -> None:
    """Raise InvalidRequest where Ray would wait for ever for what this machine does not have."""
    have, need = os.cpu_count() or 1, fleet.replicas * fleet.cpus
    if need > have:
        raise InvalidRequest(
            f"{fleet.replicas} replicas of {fleet.cpus:g} processors need {need:g}, this machine "
            f"has {have}: lower --cpus or --replicas, or name a --cluster"
        )
    if fleet.neuron_cores and not os.path.exists("/dev/neuron0"):
        raise InvalidRequest(
            f"--neuron_cores {fleet.neuron_cores}: this machine has no Neuron device; name a "
            "--cluster of machines that have"
        )


def _unused_port() -> int:
    """A port for the ingress's HTTP, which has nothing to serve and cannot be left out."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def _deployment(fleet: Fleet) -> Any:
    """The deployment of one replica, and how many of them there are."""
    from ray import serve

    scaling = {
        "min_replicas": fleet.replicas,
        "max_replicas": fleet.most_replicas,
        "target_ongoing_requests": fleet.sessions,
        "upscale_delay_s": fleet.up_seconds,
        "downscale_delay_s": fleet.down_seconds,
        "metrics_interval_s": 1.0,
        "look_back_period_s": 2.0,
    }
    count: dict[str, Any] = (
        {"autoscaling_config": scaling}
        if fleet.most_replicas > fleet.replicas
        else {"num_replicas": fleet.replicas}
    )
    actor: dict[str, Any] = {"num_cpus": fleet.cpus}
    if fleet.neuron_cores:
        actor["resources"] = {"neuron_cores": fleet.neuron_cores}
    streams = fleet.sessions + fleet.waiting  # beyond these the replica itself refuses sessions
    return serve.deployment(
        RayTarget,
        name=NAME,
        max_ongoing_requests=2 * streams,
        max_queued_requests=streams,
        graceful_shutdown_timeout_s=fleet.grace + _DEREGISTERED_SECONDS,
        health_check_period_s=5.0,
        ray_actor_options=actor,
        **count,
    )
