"""Observability of a target: a log, optional metrics, and notifications of its state to the service
manager that started the process, such as systemd.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from grpc_comm.observability.endpoint import serve_metrics
from grpc_comm.observability.log import start_log
from grpc_comm.observability.metrics import Metrics
from inference.command import say
from outrider.options.network import ObservingOptions


@contextmanager
def observed(metrics: Metrics, options: ObservingOptions) -> Iterator[None]:
    """Start the log and, if an address is given, serve metrics until the context ends.

    Raises InvalidRequest if metrics cannot be served at the configured address.
    """
    start_log(options.log, "info" if options.log == "json" else "warning")
    if options.metrics is None:
        yield
        return
    with serve_metrics(metrics, options.metrics) as bound:
        say(f"metrics on http://{bound}/metrics, health on http://{bound}/healthz")
        yield


def notify(*states: str) -> None:
    """Send states such as READY=1 to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # an abstract Unix socket
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto("\n".join(states).encode(), address)
    except OSError as error:
        say(f"cannot notify the service manager of {states[0]}: {error.strerror or error}")
