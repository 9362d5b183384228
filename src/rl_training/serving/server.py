"""The server's process: a socket, uvicorn, and an orderly stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_training.serving.served import ServedAgent

__all__ = ["listen", "require_extra", "run"]

MOST_CONNECTIONS = 1_024
STOP_SECONDS = 10  # that requests which are being answered may take when the server stops
STOPPING = (signal.SIGINT, signal.SIGTERM)


def require_extra() -> None:
    """Refuse to serve without the packages for it."""
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "orjson")):
        raise ValueError("serving needs the serve extra: pip install 'rl_training[serve]'")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes any that is free."""
    if not 0 <= port < 2**16:
        raise ValueError(f"a port is a number from 0 to 65535, got {port}")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise RuntimeError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def make_server(service: Any) -> Any:
    """An uvicorn server that a signal stops in order: what is being answered is answered, and nobody new is."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            if threading.current_thread() is not threading.main_thread():
                yield
                return

            def stop(number: int, frame: FrameType | None) -> None:
                self.force_exit = self.should_exit  # the second time, without waiting
                self.should_exit = True

            before = {number: signal.signal(number, stop) for number in STOPPING}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    return Server(
        uvicorn.Config(
            service, log_level="error", access_log=False, lifespan="off", ws="none", proxy_headers=False,
            server_header=False, date_header=False, limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )  # fmt: skip


def run(served: ServedAgent, listener: socket.socket, **options: Any) -> None:
    """Serve an agent until a signal comes; ``options`` are those of ``Service``."""
    from rl_training.serving.app import Service

    make_server(Service(served, **options)).run(sockets=[listener])
