"""The names by which a request may call a server of this machine."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NAMES", "is_loopback", "of_this_machine"]

NAMES = ("127.0.0.1", "localhost", "[::1]")  # at any port: it may have been forwarded


def of_this_machine(hosts: Sequence[str]) -> bool:
    """Whether the Host headers of a request name this machine, and once, as a browser does.

    A page of another site can have its own name point to this machine, to read what is served here; but the browser
    still says that name. So only requests that call this machine by its own names are answered.
    """
    name, _, port = hosts[0].rpartition(":") if len(hosts) == 1 else ("", "", "")
    return (name if port.isdigit() else "".join(hosts)).lower() in NAMES


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    return host.lower() in (*NAMES, "::1") or host.startswith("127.")
