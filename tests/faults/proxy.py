"""A TCP way to the server that can swallow everything, or be cut."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import Future
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class BlackHole:
    """Forwards connections to the server of ``target``; ``url`` leads through it.

    ``swallow()``: from now on nothing passes in either direction, on old
    connections and new ones, and nobody is told. ``heal()``: what was held back
    passes. ``forget()``: connections that are open swallow for ever, new ones
    pass. ``cut()``: every connection ends. It runs on a thread of its own, so
    a test may block its loop.
    """

    def __init__(self, target: str) -> None:
        self._target = conninfo_to_dict(target)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.accepted = 0
        self._ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        port = self._ready.result(10)
        self.url = make_conninfo(target, host="127.0.0.1", hostaddr=None, port=port)

    def swallow(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def heal(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def forget(self) -> None:
        self._loop.call_soon_threadsafe(self._forget)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._cut)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._ready.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        self._cut()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _forget(self) -> None:
        self._open.clear()
        self._open = asyncio.Event()
        self._open.set()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.accepted += 1
        upstream: asyncio.StreamWriter | None = None
        try:
            server, upstream = await self._connect()
            self._writers |= {writer, upstream}
            gate = self._open
            await asyncio.gather(
                self._pass(reader, upstream, gate), self._pass(server, writer, gate)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._connections.discard(task)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = self._target["host"], self._target.get("port", 5432)
        if str(host).startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, int(port))

    async def _pass(
        self, source: asyncio.StreamReader, drain: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        while data := await source.read(65536):
            await gate.wait()
            drain.write(data)
            await drain.drain()
        with contextlib.suppress(OSError):
            drain.write_eof()
