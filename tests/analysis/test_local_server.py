"""The server of the live page: for this machine alone, few connections at a time, none for long."""

from __future__ import annotations

import http.client
import socket
import threading
import time

import pytest

from rl_training.analysis import local_server
from rl_training.analysis.local_server import Answer, LocalServer

PATIENCE = 30.0  # seconds after which a test that hangs is ended


@pytest.fixture
def server():
    with LocalServer(lambda path: Answer(200, "text/plain", f"you asked for {path}"), 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(server, host, *more):
    """The status and the text of an answer to a request with this Host (None: without one)."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=PATIENCE)
    connection.putrequest("GET", "/page", skip_host=True)
    for name in [] if host is None else [host, *more]:
        connection.putheader("Host", name)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:8321", "127.0.0.1:1", "[::1]:8321", "[::1]"])
def test_a_request_for_this_machine_is_answered_at_any_port(server, host):
    assert ask(server, host) == (200, "you asked for /page")


@pytest.mark.parametrize(
    "host",
    [None, "", "example.org", "example.org:8321", "localhost.example.org", "127.0.0.1.nip.io", "x@localhost", ":80"],
)
def test_a_request_for_another_name_is_refused(server, host):
    assert ask(server, host) == (403, "ask for localhost or 127.0.0.1")


def test_a_request_with_two_names_is_refused(server):
    assert ask(server, "localhost", "example.org")[0] == 403


def closed(connection):
    """Whether the server closes a connection, of which it sends nothing."""
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_beyond_a_few_dozen_are_closed_at_once_and_room_is_made_again(server, monkeypatch):
    many = [socket.create_connection(server.server_address) for _ in range(local_server.MOST_CONNECTIONS)]
    assert closed(socket.create_connection(server.server_address))
    for connection in many:
        connection.close()
    until = time.monotonic() + PATIENCE
    while server._free._value < local_server.MOST_CONNECTIONS and time.monotonic() < until:
        time.sleep(0.01)
    assert ask(server, "localhost")[0] == 200


def test_a_silent_connection_is_closed(server, monkeypatch):
    monkeypatch.setattr(local_server.Handler, "timeout", 0.05)
    assert closed(socket.create_connection(server.server_address))


def test_a_connection_that_talks_for_ever_is_closed(server, monkeypatch):
    monkeypatch.setattr(local_server, "ALL_SECONDS", 0.1)
    connection = socket.create_connection(server.server_address, timeout=PATIENCE)

    def talk():
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            connection.sendall(b"X")
            time.sleep(0.01)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        talk()
