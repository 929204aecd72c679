"""A TCP way to the server that fails in every way in which a network does."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from psycopg.conninfo import make_conninfo

from tests.faults.chaos.wire import Conversation
from tests.faults.proxy import BlackHole

WITHIN = "ended within a commit's answer"
_AT_ONCE = struct.pack("ii", 1, 0)
# Longer than a client's own bound on a call (10 s): it finds out by itself, and the
# server's keepalive then ends the session that nobody speaks to any more.
_KEEPALIVE_S = 12.0


class Proxy(BlackHole):
    """``BlackHole``, with refusals, resets, holes in one direction only, delays, and
    connections that end within the answer of a commit. ``counts`` says how often each.

    What a hole holds back passes when it is healed, as on a network that sends again.
    """

    def __init__(
        self, target: str, dice: random.Random, *, address: str = "127.0.0.1"
    ) -> None:
        self._address = address
        self._dice = dice
        self._port = 0
        self._gates: dict[str, asyncio.Event] = {}
        self._delay_s = (0.0, 0.0)
        self._refusing = False
        self._cuts: str | None = None
        self.counts: Counter[str] = Counter()
        super().__init__(target)
        self.url = make_conninfo(self.url, host=address, port=self._port)

    # --- from any thread ----------------------------------------------------

    def hole(self, *directions: str) -> None:
        """Nothing passes any more in these: ``"up"`` to the server, ``"down"`` to the client."""
        self._say(lambda: self._shut(directions))

    def swallow(self) -> None:
        self.hole("up", "down")

    def delay(self, least_s: float, most_s: float) -> None:
        """Each piece, in both directions, comes later by something in between."""
        self._say(lambda: setattr(self, "_delay_s", (least_s, most_s)))

    def refuse(self) -> None:
        """End all connections; nobody listens any more."""
        self._wait(self._refuse)

    def reset(self) -> None:
        """End all connections with RST."""
        self._say(self._cut)

    def cut_commits(self, then: str) -> None:
        """The next answer of a commit ends within: ``then`` "reset", or "silence"."""
        self._say(lambda: setattr(self, "_cuts", then))

    def heal(self) -> None:
        """Everything passes again, what was held back, too."""
        self._wait(self._healed)

    # --- on its own thread ----------------------------------------------------

    def _say(self, what: Any) -> None:
        self._loop.call_soon_threadsafe(what)

    def _wait(self, what: Any) -> None:
        done: Future[None] = asyncio.run_coroutine_threadsafe(what(), self._loop)
        done.result(10)

    def _shut(self, directions: Iterable[str]) -> None:
        for each in directions:
            self._gates[each].clear()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        self._gates = {"up": asyncio.Event(), "down": asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        self._listener: asyncio.Server | None = None
        await self._listen()
        self._ready.set_result(self._port)
        await self._stop.wait()
        await self._unlisten()
        self._abort()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accepted, self._address, self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _refuse(self) -> None:
        await self._unlisten()
        self.counts["ended by a refusal"] += len(self._connections)
        self._abort()

    async def _healed(self) -> None:
        self._delay_s, self._cuts = (0.0, 0.0), None
        for gate in self._gates.values():
            gate.set()
        if self._listener is None:
            await self._listen()

    def _forget(self) -> None:
        held, self._gates = self._gates, {"up": asyncio.Event(), "down": asyncio.Event()}
        for gate in self._gates.values():
            gate.set()
        for gate in held.values():
            gate.clear()
        self._loop.call_later(_KEEPALIVE_S, _end, list(self._connections))

    def _cut(self) -> None:
        self.counts["reset"] += len(self._connections)
        self._abort()

    def _abort(self) -> None:
        for writer in self._writers:
            _reset(writer)

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
            await self._both_ways((reader, writer), (server, upstream))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in (writer, upstream):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._connections.discard(task)

    async def _both_ways(self, client: Any, server: Any) -> None:
        line = _Line(self._gates)
        ways = [
            asyncio.create_task(self._up(line, client[0], server[1])),
            asyncio.create_task(self._down(line, server[0], client[1])),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _up(
        self, line: _Line, source: asyncio.StreamReader, drain: asyncio.StreamWriter
    ) -> None:
        while data := await self._passed(source, line, "up"):
            line.talk.asked(data)
            drain.write(data)
            await drain.drain()
        line.client_gone.set()
        with contextlib.suppress(OSError):
            drain.write_eof()

    async def _down(
        self, line: _Line, source: asyncio.StreamReader, drain: asyncio.StreamWriter
    ) -> None:
        while data := await self._passed(source, line, "down"):
            place = line.talk.answered(data)
            if place is not None and self._cuts is not None:
                await self._end_within(line, data, place, drain)
            drain.write(data)
            await drain.drain()
        with contextlib.suppress(OSError):
            drain.write_eof()

    async def _passed(
        self, source: asyncio.StreamReader, line: _Line, way: str
    ) -> bytes:
        """The next bytes, or nothing at the end, when the network lets them through."""
        try:
            data = await source.read(65536)
        except OSError:
            data = b""
        gate = line.gates[way]
        if not gate.is_set():
            self.counts[f"held back {way}"] += 1
            await gate.wait()
        if self._delay_s[1]:
            self.counts["delayed"] += 1
            await asyncio.sleep(self._dice.uniform(*self._delay_s))
        return data

    async def _end_within(
        self, line: _Line, data: bytes, place: tuple[int, int], drain: asyncio.StreamWriter
    ) -> None:
        how, self._cuts = self._cuts, None
        drain.write(data[: self._dice.randrange(*place)])
        await drain.drain()
        self.counts[WITHIN] += 1
        if how == "silence":
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(line.client_gone.wait(), _KEEPALIVE_S)
        _reset(drain)
        raise ConnectionResetError


class _Line:
    """One connection; it keeps its gates, so that it can be forgotten."""

    def __init__(self, gates: dict[str, asyncio.Event]) -> None:
        self.gates = gates
        self.talk = Conversation()
        self.client_gone = asyncio.Event()


def _end(connections: list[asyncio.Task[Any]]) -> None:
    for connection in connections:
        connection.cancel()


def _reset(writer: asyncio.StreamWriter) -> None:
    found = writer.get_extra_info("socket")
    if found is not None and found.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()
