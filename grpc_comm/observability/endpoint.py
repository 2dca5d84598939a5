"""Metrics over HTTP on a separate port: /metrics for Prometheus, /healthz for load balancers.

Without TLS, as the answers contain no secrets.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

from prometheus_client import MetricsHandler

from grpc_comm.observability.metrics import Metrics
from grpc_comm.transport import Address, check_port
from inference.errors import InvalidRequest

_POLL_SECONDS = 0.05  # between checks whether to stop
_CALLER_SECONDS = 10  # silence after which a caller is disconnected


@contextmanager
def serve_metrics(metrics: Metrics, address: Address) -> Iterator[Address]:
    """Serve metrics until the context ends; yield the bound address.

    Raises InvalidRequest if the address cannot be bound.
    """
    with _listen(metrics, address) as server:
        thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_SECONDS,), name="metrics", daemon=True
        )
        thread.start()
        try:
            yield address._replace(port=server.server_port)
        finally:
            server.shutdown()
            thread.join()


def _listen(metrics: Metrics, address: Address) -> ThreadingHTTPServer:
    class Handler(_Handler):
        served, registry = metrics, metrics.registry

    class MetricsServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    try:
        return MetricsServer((address.host, check_port(address.port)), Handler)
    except OSError as error:
        raise InvalidRequest(
            f"cannot serve metrics on {address}: is the port in use, or the host another machine?"
        ) from error


class _Handler(MetricsHandler):
    served: ClassVar[Metrics]
    timeout = _CALLER_SECONDS
    server_version, sys_version = "outrider", ""

    def do_GET(self) -> None:
        path, health = urlsplit(self.path).path, self.served.health
        if path == "/metrics":
            super().do_GET()
        elif path == "/healthz":
            serving = health == "serving"
            self._answer(HTTPStatus.OK if serving else HTTPStatus.SERVICE_UNAVAILABLE, health)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "/metrics and /healthz are here")

    def _answer(self, status: HTTPStatus, line: str) -> None:
        body = f"{line}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
