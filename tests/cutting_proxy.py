"""A proxy in front of a PostgreSQL server that can end its connections after any number of bytes, in either direction."""

import selectors
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

NAME = ".s.PGSQL.5432"


class CuttingProxy:
    """Listens on a socket in a folder of its own, and forwards all data to the server and back. After `cut` it forwards the given
    number of bytes in that direction, and then ends the connection; later connections are forwarded as before. Use it as a
    context manager.
    """

    def __init__(self, server_folder):
        self.folder = Path(tempfile.mkdtemp(prefix="hf-proxy-", dir="/tmp"))
        self._server = str(Path(server_folder) / NAME)
        self._lock = threading.Lock()
        self._left = {"to_server": None, "from_server": None}
        self._open = []
        self._ended = False
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.folder / NAME))
        self._listener.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self):
        return f"postgresql://postgres@/postgres?host={self.folder}"

    def cut(self, direction, after_bytes):
        with self._lock:
            self._left[direction] = after_bytes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
        self._end_all()
        shutil.rmtree(self.folder)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._lock:
                self._open += [client, server]
                if self._ended or server.connect_ex(self._server):
                    client.close()
                    server.close()
                    continue
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()

    def _pass_on(self, client, server):
        ways = {client: ("to_server", server), server: ("from_server", client)}
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        direction, other = ways[key.fileobj]
                        data = key.fileobj.recv(65536)
                        allowed = self._allowed(direction, len(data))
                        other.sendall(data[:allowed])
                        if not data or allowed < len(data):
                            return
            except OSError:
                return
            finally:
                for end in (client, server):
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def _allowed(self, direction, count):
        with self._lock:
            left = self._left[direction]
            if left is None:
                return count
            if count > left:
                self._left[direction] = None
                return left
            self._left[direction] = left - count
            return count

    def _end_all(self):
        with self._lock:
            self._ended = True  # connections that are accepted from now on are closed at once
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
