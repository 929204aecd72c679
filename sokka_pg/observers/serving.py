"""``/metrics`` over HTTP, and nothing else."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from sokka_pg.errors import UsageError

log = logging.getLogger("sokka_pg")

LOOPBACK = "127.0.0.1"
MOST_AT_ONCE = 8
_SLOWEST_CLIENT_S = 10.0
_PLAIN = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves a registry at ``url``, on threads of its own, from ``start`` to ``close``.

    ``port`` 0 takes a free one. Anything but GET and HEAD of ``/metrics`` is refused.
    Raises UsageError if the address cannot be had.
    """

    def __init__(
        self, registry: CollectorRegistry, host: str = LOOPBACK, port: int = 0
    ) -> None:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _server(family)((host, port), _handler(registry))
        except (OSError, OverflowError) as error:
            raise UsageError(f"metrics cannot be served at {host}:{port}: {error}") from error
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="sokka-metrics-http", daemon=True
        )

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def start(self) -> None:
        """Serve from now on."""
        self._thread.start()
        log.info("metrics at %s", self.url)

    def close(self) -> None:
        """Serve no more; the port is free again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingMixIn, TCPServer):
    """At most so many requests at once: others are closed without an answer."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request for metrics broke", exc_info=True)


def _server(family: int) -> type[_Server]:
    return type("_ServerOfFamily", (_Server,), {"address_family": family})


def _handler(registry: CollectorRegistry) -> type[BaseHTTPRequestHandler]:
    return type("_MetricsHandler", (_Handler,), {"registry": registry})


def _encoder(accept: str) -> tuple[Callable[[Any], bytes], str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is none
        return choose_encoder("")


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    timeout = _SLOWEST_CLIENT_S

    def version_string(self) -> str:
        return "sokka"

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, _PLAIN, b"see /metrics\n")
            return
        encode, content_type = _encoder(self.headers.get("Accept") or "")
        try:
            body = encode(self.registry)
        except Exception:
            # a collector of somebody else: say so, and keep serving
            log.exception("the metrics could not be collected")
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, b"a collector failed\n")
            return
        self._answer(HTTPStatus.OK, content_type, body)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self._answer(HTTPStatus(code), _PLAIN, b"refused\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug("metrics: " + format, *arguments)
