"""Metrics over HTTP, on a port of its own: /metrics for Prometheus, /healthz for load balancers.

No TLS, no secrets.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder

from grpc_comm.observability.metrics import Metrics
from grpc_comm.transport import Address, check_port
from inference.errors import InvalidRequest

_POLL_SECONDS = 0.05  # between checks whether to stop
_CALLER_SECONDS = 10  # a caller that is silent for so long is disconnected


@contextmanager
def serve_metrics(metrics: Metrics, address: Address) -> Iterator[Address]:
    """Answer scrapes until the context ends; yield the bound address.

    Raises InvalidRequest when the address cannot be bound.
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
    class Handler(_MetricsHandler):
        served = metrics

    class MetricsServer(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

    try:
        return MetricsServer((address.host, check_port(address.port)), Handler)
    except OSError as error:
        raise InvalidRequest(
            f"cannot serve metrics on {address}: is the port in use, or the host another machine?"
        ) from error


class _MetricsHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    served: ClassVar[Metrics]
    timeout = _CALLER_SECONDS
    server_version, sys_version = "outrider", ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, kind, encode(self.served.registry))
        elif path == "/healthz":
            health = self.served.health
            self._answer(
                HTTPStatus.OK if health == "serving" else HTTPStatus.SERVICE_UNAVAILABLE,
                "text/plain",
                f"{health}\n".encode(),
            )
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"/metrics and /healthz are here\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Log nothing: scrapes are frequent."""

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
