"""A server that is not Holdfast: it sends what a test says, byte by byte, and remembers what it was sent."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CERTIFICATE = Path(__file__).parent / "elsewhere.pem"
"""A certificate for another host, signed by nobody, with its key."""


def answer(body: bytes = b"{}", status: int = 200, **headers: str) -> bytes:
    given = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status} Told\r\n{lines}\r\n".encode() + body


class Canned:
    """Answers the first request with the first answer, and so on; the last one is repeated. None cuts the connection."""

    def __init__(self, *answers: bytes | None, tls: bool = False, keeps: bool = True) -> None:
        self._answers = list(answers)
        self._keeps = keeps
        self.requests: list[str] = []
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(CERTIFICATE)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            try:
                with (
                    peer if self._tls is None else self._tls.wrap_socket(peer, server_side=True) as open_peer
                ):
                    self._talk(open_peer)
            except OSError:
                continue

    def _talk(self, peer: socket.socket) -> None:
        peer.settimeout(30)
        self.connections += 1
        while request := _read(peer):
            self.requests.append(request)
            told = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            if told is None:
                return
            peer.sendall(told)
            if not self._keeps:
                return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(30)


def _read(peer: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = peer.recv(65536)
        if not piece:
            return ""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += peer.recv(65536)
    return (head + b"\r\n\r\n" + body).decode("latin-1")


@contextmanager
def canned(*answers: bytes | None, **options: bool) -> Iterator[Canned]:
    made = Canned(*answers, **options)
    try:
        yield made
    finally:
        made.close()
