"""Closed-loop load on a web server: python load.py PORT SECONDS CONNECTIONS REQUESTS_FILE

Every connection sends a request as soon as it has the answer to its last one, over plain sockets and one selector, so that the
client costs little beside the server. Requests and answers are the same bytes for everybody. Prints one JSON line.
"""

import json
import selectors
import socket
import sys
import time

WARM = 0.2  # of the seconds, before anything counts


class Connection:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received, self.sent = b"", 0.0

    def ask(self, request: bytes) -> None:
        self.received, self.sent = b"", time.perf_counter()
        self.socket.sendall(request)

    def answered(self) -> bool:
        self.received += self.socket.recv(65536)
        head, gap, body = self.received.partition(b"\r\n\r\n")
        if not gap:
            return False
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"refused: {self.received[:300]!r}")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        return len(body) == length


def packed(body: bytes) -> bytes:
    head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def main() -> None:
    port, seconds, count, path = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with open(path, "rb") as file:
        requests = [packed(line) for line in file.read().splitlines()]
    selector, turn = selectors.DefaultSelector(), 0
    for _ in range(count):
        connection = Connection(port)
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.ask(requests[turn % len(requests)])
        turn += 1
    start = time.perf_counter()
    counted, end, taken = start + WARM * seconds, start + seconds, []
    now = start
    while now < end:
        for key, _ in selector.select():
            connection = key.data
            if connection.answered():
                now = time.perf_counter()
                if now >= counted:
                    taken.append(now - connection.sent)
                connection.ask(requests[turn % len(requests)])
                turn += 1
    taken.sort()
    at = {f"p{share}": 1000 * taken[int(share / 100 * len(taken))] for share in (50, 99)}
    print(json.dumps({"requests": len(taken), "asked": turn, "per_second": len(taken) / (end - counted), **at}))


if __name__ == "__main__":
    main()
