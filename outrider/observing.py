"""Who hears what a target does: always the log, and the metrics and the operator's view that
were asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from grpc_comm.observability.log import EventLog, start_log
from grpc_comm.observer import ServiceObserver, ServiceObservers
from grpc_comm.transport import Address
from outrider.options import Options


@contextmanager
def observed(options: Options) -> Iterator[ServiceObserver]:
    """What a target is to tell everything; until the context ends, it is written, served and shown.

    Raises MissingExtra, or InvalidRequest when metrics cannot be served at their address.
    """
    start_log(options.log, options.log_level)
    observers: list[ServiceObserver] = [EventLog()]
    with ExitStack() as stack:
        if options.metrics_port is not None:
            from grpc_comm.observability.endpoint import serve_metrics
            from grpc_comm.observability.metrics import Metrics

            metrics = Metrics()
            observers.append(metrics)
            bound = stack.enter_context(
                serve_metrics(metrics, Address(options.metrics_host, options.metrics_port))
            )
            print(
                f"metrics on http://{bound}/metrics, health on http://{bound}/healthz",
                file=sys.stderr,
                flush=True,
            )
        if options.watch:
            from rich.console import Console

            from grpc_comm.observability.dashboard import Watch

            watch = Watch(Console(stderr=True), options.usd_per_hour)
            observers.append(watch)
            stack.enter_context(watch)
        yield ServiceObservers(observers)
