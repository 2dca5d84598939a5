"""`outrider deploy ray`: runs targets as a deployment of Ray Serve behind one address, with a
replica for each group of NeuronCores.

Ray places and restarts the replicas, counts open sessions, and scales. Its HAProxy routes each
session's stream to one replica. A replica runs the target's own code, authentication included
(grpc_comm/server/hosted.py). A client that loses its replica continues at another replica, at the
cost of a prefill.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator

from grpc_comm.server.hosted import Carrier, HostedTarget, await_routes
from grpc_comm.transport import MAX_MESSAGE_BYTES, Address
from inference.command import say
from inference.errors import InvalidRequest, require
from inference.files.artifact import read_manifest
from inference.flags.command_line import CommandOptions
from inference.flags.group import Metavar, flags_of
from inference.flags.values import Counts, Host, Port, Seconds
from outrider.options import groups, network
from outrider.options.roles import TargetRole
from outrider.processes import READY

EXAMPLES = """examples:
  outrider deploy ray --replicas 2 --insecure                  two targets here, to try it
  outrider deploy ray --replicas 2,8 --artifact DIR --keys_file keys.json

Ctrl-C stops the fleet. The ingress has no TLS: keep its port on this machine's network, behind a
load balancer with a certificate, or a tunnel."""


def _range(replicas: tuple[int, ...]) -> tuple[int, ...]:
    if len(replicas) not in (1, 2) or replicas[0] > replicas[-1]:
        raise ValueError("N or MIN,MAX is needed, such as 2 or 2,8")
    return replicas


class RayOptions(
    groups.HourlyOptions, groups.TargetOptions, network.KeysOptions, CommandOptions, title="fleet"
):
    """Serve a target from several replicas behind one address.

    It needs pip install '.[ray]'. Each replica takes flags of `outrider target`.
    """

    replicas: Annotated[Counts, AfterValidator(_range), Metavar("N_OR_MIN,MAX")] = (1,)
    """number of replicas, or MIN,MAX to add some while open sessions exceed the rows"""
    host: Host = "127.0.0.1"
    """address for the ingress to listen on"""
    port: Port = 50051
    """port of the ingress"""
    grace: Seconds = 60.0
    """grace period for texts of a stopping replica; longer ones move to another replica"""
    insecure: bool = False
    """allow clients without keys"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.keys_file is None and not self.insecure:
            raise ValueError(
                "Ray's replicas listen on all addresses of their machines: give --keys_file FILE "
                "(or --insecure, if the network is trusted)"
            )
        return self

    @property
    def min_replicas(self) -> int:
        return self.replicas[0]

    @property
    def max_replicas(self) -> int:
        return self.replicas[-1]

    @property
    def ingress(self) -> Address:
        """The address of the fleet."""
        return Address(self.host, self.port)

    @property
    def neuron_cores(self) -> int:
        """Number of NeuronCores per replica, for which the artefact was built."""
        manifest = read_manifest(Path(self.artifact)) if self.artifact else None
        return 0 if manifest is None or manifest.target == "cpu" else manifest.tensor_parallel

    @property
    def target(self) -> TargetRole:
        """The options of the target that each replica serves."""
        shared = flags_of(TargetRole).keys() - {"host", "port", "debug"}
        return TargetRole(**self.explicit(shared))


def run(options: RayOptions) -> int:
    """Start the fleet. If the cluster is local, serve until a signal."""
    start(options)
    say(f"{READY}{options.ingress} ({options.min_replicas} replicas); Ctrl-C stops")
    if CLUSTER in os.environ:
        return 0
    signalled = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: signalled.set())
    signalled.wait()
    stop()
    return 0


NAME = "outrider"
"""Name of the application in Ray Serve."""

CLUSTER = "RAY_ADDRESS"
"""Ray's variable for the address of a running cluster. If set, the fleet outlives the command."""

_SERVICER = "grpc_comm.proto.verifier_pb2_grpc.add_TargetServicer_to_server"
_DEREGISTERED_SECONDS = 5.0
"""Seconds for which a stopping replica still accepts streams, until the ingress avoids it."""
SCALE_UP_SECONDS, SCALE_DOWN_SECONDS = 10.0, 300.0
"""Seconds before a replica is added when there are too many sessions, or drained when too few."""

ENVIRONMENT = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # "1": each message switches threads twice
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(MAX_MESSAGE_BYTES),  # Ray's default is 2 GB
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_DEREGISTERED_SECONDS),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",  # a busy machine needs more than Ray's default of 30 s
}
"""Environment variables that Ray reads at start. A running cluster must already have them."""


class RayTarget:
    """A replica. Ray Serve calls its methods by their RPC names."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: the target's options, by name

        Ray sets NEURON_RT_VISIBLE_CORES to this replica's cores before it creates the replica.
        """
        from outrider.target.target import load_target  # imports torch, which --help does not need

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
        """Raise an error if the engine hangs, so that Ray replaces this replica."""
        if self._hosted.hung:
            raise RuntimeError("the engine is in a step that does not end")

    async def __del__(self) -> None:
        """Close the target once Ray has drained the replica."""
        await self._hosted.end()


def start(options: RayOptions) -> None:
    """Start the fleet and return when its replicas answer. It runs in the cluster named by the
    variable CLUSTER, else in a local cluster that ends with this process.

    Raises MissingExtra without Ray, InvalidRequest if this machine is too small, and Unavailable
    if the ingress does not reach the replicas.
    """
    os.environ.update(ENVIRONMENT)
    local: dict[str, Any] = {}
    if CLUSTER not in os.environ:
        _check_room(options)
        local = {"include_dashboard": False, "num_cpus": os.cpu_count()}
    require("ray", "a fleet")
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions, gRPCOptions

    ray.init(log_to_driver=False, **local)
    serve.start(
        http_options=HTTPOptions(host=options.host, port=_unused_port()),
        grpc_options=gRPCOptions(
            port=options.port, grpc_servicer_functions=[_SERVICER], enable_reflection=False
        ),
    )
    flags = dict(sorted(options.target.explicit().items()))
    serve.run(_deployment(options).bind(flags), name=NAME, route_prefix=f"/{NAME}")
    if local:
        await_routes(options.ingress)


def stop() -> None:
    """Stop the fleet after its grace period, and the cluster if this process started it."""
    import ray
    from ray import serve

    serve.shutdown()
    ray.shutdown()


def _check_room(options: RayOptions) -> None:
    """Raise InvalidRequest if Ray would wait forever for processors or devices that are missing."""
    have = os.cpu_count() or 1
    if options.min_replicas > have:
        raise InvalidRequest(
            f"--replicas {options.min_replicas}: each takes a processor, this machine has {have}; "
            f"{CLUSTER} names a larger cluster"
        )
    if options.neuron_cores and not os.path.exists("/dev/neuron0"):
        raise InvalidRequest(
            f"--artifact {options.artifact} is for Neuron, and this machine has no such device; "
            f"{CLUSTER} names a cluster"
        )


def _unused_port() -> int:
    """Return a free port for the HTTP server that Ray starts, though the fleet does not use it."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return int(unused.getsockname()[1])


def _deployment(options: RayOptions) -> Any:
    """Return the Ray Serve deployment: the replica's class and resources, and their number."""
    from ray import serve

    from inference.engine.engine import MAX_QUEUED

    scaling = {
        "min_replicas": options.min_replicas,
        "max_replicas": options.max_replicas,
        "target_ongoing_requests": options.batch,
        "upscale_delay_s": SCALE_UP_SECONDS,
        "downscale_delay_s": SCALE_DOWN_SECONDS,
        "metrics_interval_s": 1.0,
        "look_back_period_s": 2.0,
    }
    count: dict[str, Any] = (
        {"autoscaling_config": scaling}
        if options.max_replicas > options.min_replicas
        else {"num_replicas": options.min_replicas}
    )
    actor: dict[str, Any] = {"num_cpus": 1}
    if options.neuron_cores:
        actor["resources"] = {"neuron_cores": options.neuron_cores}
    streams = options.batch + MAX_QUEUED  # the replica refuses any further sessions
    return serve.deployment(
        RayTarget,
        name=NAME,
        max_ongoing_requests=2 * streams,
        max_queued_requests=streams,
        graceful_shutdown_timeout_s=options.grace + _DEREGISTERED_SECONDS,
        health_check_period_s=5.0,
        ray_actor_options=actor,
        **count,
    )
