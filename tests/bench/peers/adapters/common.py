"""What every adapter in Python shares: one process, one verb.

    python ADAPTER.py VERB URL [ARGUMENT ...]

Imports nothing but the standard library, so that it runs in each peer's own environment.
Moments are CLOCK_MONOTONIC nanoseconds, the same clock for all processes of a machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

BULK = 1_000
_PAD = "0123456789abcdef" * 8


def payload(number: int) -> dict[str, object]:
    """About 100 bytes of JSON."""
    return {"number": number, "pad": _PAD[:72]}


class Peer(ABC):
    """One queue at its tuned setting. ``remaining``: SQL that counts unfinished tasks."""

    name = ""
    packages: tuple[str, ...] = ()
    setting = ""
    source = ""
    history = ""
    remaining = ""
    sleep_ms = 0.0
    sync_producers = False

    def __init__(self, url: str, handled: Callable[[int], None]) -> None:
        self.url, self.handled = url, handled

    @abstractmethod
    async def setup(self) -> None:
        """Make the schema in an empty database."""

    @abstractmethod
    async def open(self, clients: int) -> None:
        """Get ready to enqueue from that many places at once."""

    async def enqueue(self, number: int) -> None:
        """One task, committed on return. A queue has this or ``enqueue_sync``."""
        raise TypeError(f"{self.name} enqueues from threads")

    @abstractmethod
    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """At the batch size that suits it; committed on return."""

    def enqueue_sync(self, number: int) -> None:
        """The same for producers that block: called from several threads."""
        raise TypeError(f"{self.name} enqueues from coroutines")

    @abstractmethod
    async def work(self, slots: int | None) -> None:
        """Work until cancelled, with the tuned number of slots unless told otherwise."""

    async def close(self) -> None:  # noqa: B027  (most have nothing to end)
        """End what ``open`` began."""

    async def handle(self, number: int) -> None:
        """What every handler does: be counted, and sleep if it is to."""
        self.handled(number)
        if self.sleep_ms:
            await asyncio.sleep(self.sleep_ms / 1000)

    def handle_sync(self, number: int) -> None:
        self.handled(number)
        if self.sleep_ms:
            time.sleep(self.sleep_ms / 1000)


class Tally:
    """Handled tasks, told to the parent: each one, or how many at which moments."""

    def __init__(self, each: bool) -> None:
        self.count, self.each = 0, each
        if not each:
            threading.Thread(target=self._tell, daemon=True).start()

    def __call__(self, number: int) -> None:
        self.count += 1
        if self.each:
            os.write(1, f"s {number} {time.monotonic_ns()}\n".encode())
        elif self.count == 1:
            os.write(1, f"h 0 {time.monotonic_ns()}\n".encode())

    def _tell(self) -> None:
        told = 0
        while True:
            time.sleep(0.02)
            if (count := self.count) != told:
                os.write(1, f"h {count} {time.monotonic_ns()}\n".encode())
                told = count


async def _single(peer: Peer, clients: int, seconds: float) -> dict[str, float]:
    """How many tasks that many clients enqueue one by one, each with its commit."""
    await peer.open(clients)
    done = 0

    async def one() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await peer.enqueue(done)
            done += 1

    def one_sync(_: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            peer.enqueue_sync(done)
            done += 1

    for warm_up in range(2 * clients):
        if peer.sync_producers:
            peer.enqueue_sync(warm_up)
        else:
            await peer.enqueue(warm_up)
    begun = time.perf_counter()
    end = begun + seconds
    if peer.sync_producers:
        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(one_sync, range(clients)))
    else:
        await asyncio.gather(*(one() for _ in range(clients)))
    passed = time.perf_counter() - begun
    await peer.close()
    return {"count": done, "seconds": passed}


async def _bulk(peer: Peer, count: int, first: int = 0) -> dict[str, float]:
    await peer.open(1)
    begun = time.perf_counter()
    await peer.enqueue_many(range(first, first + count))
    passed = time.perf_counter() - begun
    await peer.close()
    return {"count": count, "seconds": passed}


async def _produce(peer: Peer, count: int, gap_ms: float, steady: bool) -> None:
    """Enqueue one by one and tell when each was asked for: at random gaps after the one
    before has been committed, or at a steady rate whatever happens to them."""
    await peer.open(8)
    loop = asyncio.get_running_loop()
    threads = ThreadPoolExecutor(8)

    async def send(number: int) -> None:
        os.write(1, f"e {number} {time.monotonic_ns()}\n".encode())
        if peer.sync_producers:
            await loop.run_in_executor(threads, peer.enqueue_sync, number)
        else:
            await peer.enqueue(number)

    under_way: list[asyncio.Task[None]] = []
    due = time.monotonic()
    for number in range(count):
        if steady:
            due += gap_ms / 1000
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            under_way.append(asyncio.create_task(send(number)))
        else:
            await send(number)
            await asyncio.sleep(random.uniform(0.5, 1.5) * gap_ms / 1000)
    await asyncio.gather(*under_way)
    await peer.close()


async def _until_told(peer: Peer, slots: int | None) -> None:
    """Say that all is loaded, wait for the word, and work until SIGTERM."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 0)
    os.write(1, b"r 0 0\n")
    sys.stdin.readline()
    await peer.work(slots)


def _describe(kind: type[Peer]) -> dict[str, object]:
    return {
        "name": kind.name, "versions": {name: version(name) for name in kind.packages},
        "runtime": f"Python {sys.version.split()[0]}", "setting": kind.setting,
        "source": kind.source, "history": kind.history, "remaining": kind.remaining,
    }  # fmt: skip


async def _run(kind: type[Peer], verb: str, url: str, rest: list[str]) -> object:
    tally = Tally(each=verb == "echo") if verb in ("work", "echo") else None
    peer = kind(url, tally or (lambda number: None))
    if verb == "setup":
        return await peer.setup()
    if verb == "single":
        return await _single(peer, int(rest[0]), float(rest[1]))
    if verb == "bulk":
        return await _bulk(peer, int(rest[0]))
    if verb == "produce":
        return await _produce(peer, int(rest[0]), float(rest[1]), rest[2] == "steady")
    if verb in ("work", "echo"):
        peer.sleep_ms = float(rest[1])
        return await _until_told(peer, int(rest[0]) or None)
    raise SystemExit(f"no verb {verb!r}")


def main(kind: type[Peer]) -> None:
    verb, *rest = sys.argv[1:]
    if verb == "describe":
        print(json.dumps(_describe(kind)))
        return
    try:
        import uvloop

        answer = uvloop.run(_run(kind, verb, rest[0], rest[1:]))
    except ImportError:
        answer = asyncio.run(_run(kind, verb, rest[0], rest[1:]))
    print(json.dumps(answer), flush=True)
