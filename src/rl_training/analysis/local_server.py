"""A small web server for this machine alone: few connections at a time, each for a short while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from rl_training.base.hosts import of_this_machine

__all__ = ["Answer", "LocalServer"]

MOST_CONNECTIONS = 32
SILENT_SECONDS = 10.0  # that a connection may wait for the next byte
ALL_SECONDS = 60.0  # that it may last


class Answer(NamedTuple):
    """What a server answers: status, kind of content, and the content."""

    code: int
    kind: str
    text: str


class Handler(BaseHTTPRequestHandler):
    """Answers one request, if it calls this machine by its own name (``of_this_machine``)."""

    server: LocalServer
    timeout = SILENT_SECONDS

    def setup(self) -> None:
        super().setup()
        self._end = threading.Timer(ALL_SECONDS, _hang_up, [self.connection])
        self._end.daemon = True
        self._end.start()

    def finish(self) -> None:
        self._end.cancel()
        super().finish()

    def do_GET(self) -> None:
        known = of_this_machine(self.headers.get_all("Host", []))
        refused = Answer(403, "text/plain", "ask for localhost or 127.0.0.1")
        answer = self.server.answer(self.path) if known else refused
        body = answer.text.encode(errors="backslashreplace")
        self.send_response(answer.code)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Print nothing."""


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class LocalServer(ThreadingHTTPServer):
    """A thread for each connection, a few dozen at the most: further connections are closed at once."""

    request_queue_size = MOST_CONNECTIONS

    def __init__(self, answer: Callable[[str], Answer], port: int) -> None:
        self.answer, self._free = answer, threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(("127.0.0.1", port), Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a browser that goes away before its answer is no error."""
