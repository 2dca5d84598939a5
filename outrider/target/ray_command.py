"""`outrider deploy ray`: a fleet of targets on Ray Serve, behind one address."""

from __future__ import annotations

import signal
import threading
from typing import Annotated, Self

from annotated_types import Ge
from pydantic import model_validator

from grpc_comm.transport import Address
from inference.command import say
from inference.flags.command_line import CommandOptions
from inference.flags.group import flags_of
from inference.flags.values import Count, Host, Name, Natural, Port, Seconds
from outrider.options import groups, network
from outrider.options.roles import TargetRole

EXAMPLES = """examples:
  outrider deploy ray --replicas 2 --insecure                  two targets here, for a try
  outrider deploy ray --replicas 2 --most_replicas 8 --artifact DIR --neuron_cores 2 \\
      --keys_file keys.json                                    on Trainium, two cores for each

Ctrl-C ends the fleet. The ingress speaks no TLS: keep its port to this machine's network, and let a
load balancer with a certificate, or a tunnel, stand in front of it."""


class RayOptions(
    groups.HourlyOptions, groups.TargetOptions, network.KeysOptions, CommandOptions, title="fleet"
):
    """Serve a target from several replicas behind one address.

    It needs pip install 'outrider[ray]'. Each replica takes flags of `outrider target`.
    """

    replicas: Count = 1
    """replicas, at least"""
    most_replicas: Count | None = None
    """start more, up to so many, while there are more open sessions than rows"""
    neuron_cores: Natural = 0
    """NeuronCores of each replica, its tensor-parallel group (0: it uses none)"""
    cpus: Annotated[float, Ge(0)] = 1.0
    """processors that Ray sets aside for each replica"""
    host: Host = "127.0.0.1"
    """address on which the ingress listens"""
    port: Port = 50051
    """port of the ingress"""
    waiting: Natural = 64
    """sessions that may stand in line for a row of one replica"""
    lease: Seconds = 15.0
    """how long a silent client's session is held"""
    scale_up_after: Seconds = 10.0
    """how long there must be too many sessions before a replica is added"""
    scale_down_after: Seconds = 300.0
    """how long there must be too few sessions before a replica is drained"""
    grace: Seconds = 60.0
    """time that texts have to end at a replica that goes; longer ones go on at another replica"""
    cluster: Name | None = None
    """a Ray cluster that runs already, such as auto; the fleet then stays when the command ends"""
    insecure: bool = False
    """serve without keys"""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.most_replicas is not None and self.most_replicas < self.replicas:
            raise ValueError(
                f"--most_replicas {self.most_replicas} is below --replicas {self.replicas}"
            )
        if self.keys_file is None and not self.insecure:
            raise ValueError(
                "Ray's replicas listen on all addresses of their machines: give --keys_file FILE "
                "(or --insecure, if the network is trusted)"
            )
        return self

    @property
    def target(self) -> TargetRole:
        """Options of the target that each replica serves."""
        shared = self.stated().keys() & flags_of(TargetRole).keys() - {"host", "port", "debug"}
        return TargetRole(**{name: getattr(self, name) for name in shared})


OPTIONS = RayOptions


def run(options: RayOptions) -> int:
    """Start the fleet; in a cluster of its own, serve until a signal."""
    from outrider.target.ray_target import Fleet, start, stop  # torch, which help does not need
    from outrider.target.target import READY

    fleet = Fleet(
        replicas=options.replicas,
        most_replicas=options.most_replicas or options.replicas,
        sessions=options.batch,
        waiting=options.waiting,
        neuron_cores=options.neuron_cores,
        cpus=options.cpus,
        ingress=Address(options.host, options.port),
        up_seconds=options.scale_up_after,
        down_seconds=options.scale_down_after,
        grace=options.grace,
    )
    start(fleet, options.target, options.cluster)
    say(f"{READY}{fleet.ingress} ({options.replicas} replicas); Ctrl-C ends")
    if options.cluster is not None:
        return 0
    signalled = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: signalled.set())
    signalled.wait()
    stop()
    return 0
