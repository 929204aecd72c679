"""A way to the server that can lose answers: a small TCP proxy."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class LossyProxy:
    """Forwards connections to the server. After ``lose_next_answer()`` the next
    bytes from the server are thrown away and every connection is cut: the
    statement took effect, and its caller never hears of it."""

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._armed = threading.Event()
        self._passing = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.lost = 0
        self.accepted = 0
        port = self._listener.getsockname()[1]
        self.url = make_conninfo(url, host="127.0.0.1", hostaddr=None, port=port)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_answer(self) -> None:
        self.lose_answer_after(0)

    def lose_answer_after(self, answers: int) -> None:
        """Let that many answers pass, then lose one."""
        self._passing = answers
        self._armed.set()

    def cut(self) -> None:
        """End every connection now."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # shutdown wakes the accepting thread; close alone would not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connected()
            self.accepted += 1
            self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _loses_this_one(self) -> bool:
        if not self._armed.is_set():
            return False
        if self._passing:
            self._passing -= 1
            return False
        self._armed.clear()
        self.lost += 1
        return True

    def _connected(self) -> socket.socket:
        given: dict[str, Any] = self._server
        host, port = str(given.get("host") or "127.0.0.1"), int(given.get("port") or 5432)
        if host.startswith("/"):
            found = socket.socket(socket.AF_UNIX)
            found.connect(f"{host}/.s.PGSQL.{port}")
            return found
        return socket.create_connection((host, port))

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if answers and self._loses_this_one():
                    self.cut()
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
