"""The scheduler's faces behind one interface, and candidates that do as they are told.

``face(lambda s: s.submit(...))`` calls a scheduler; the async one is awaited on a
loop of its own, in a thread, as a program with a loop would do it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from sokka_pg import Sokka, WorkerOptions
from sokka_pg.workload import AsyncWorkloadScheduler, WorkerInvoker, WorkloadScheduler

KINDS = ("sync", "async")
TOPIC = "candidates"
LIMIT_S = 20


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(3 * LIMIT_S)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        self.run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LIMIT_S)
        self.loop.close()

    async def _end(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=LIMIT_S)
        await self.loop.shutdown_default_executor()


class Face:
    """One scheduler, sync or async."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        options.setdefault("poll", 0.2)
        make = WorkloadScheduler if kind == "sync" else AsyncWorkloadScheduler
        self.scheduler: Any = make(url, **options)
        self._thread = LoopThread() if kind == "async" else None

    def __call__(self, use: Callable[[Any], Any]) -> Any:
        """Use the scheduler, or a handle of it; what is awaitable is awaited."""
        if self._thread is None:
            return use(self.scheduler)

        async def used() -> Any:
            found = use(self.scheduler)
            return await found if inspect.isawaitable(found) else found

        return self._thread.run(used())

    def all(self, iterate: Callable[[Any], Any]) -> list[Any]:
        """All that an iterator of the scheduler gives."""
        if self._thread is None:
            return list(iterate(self.scheduler))

        async def gathered() -> list[Any]:
            return [each async for each in iterate(self.scheduler)]

        found: list[Any] = self._thread.run(gathered())
        return found

    def local(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as this face's programs would write it."""
        if self._thread is None:
            return function

        async def awaited(*arguments: Any) -> Any:
            return await asyncio.to_thread(function, *arguments)

        if len(inspect.signature(function).parameters) == 2:
            return lambda candidate, context: awaited(candidate, context)
        return awaited

    def close(self) -> None:
        self(lambda s: s.close())
        if self._thread is not None:
            self._thread.close()


class Crew:
    """A worker of the same process, on a loop of its own."""

    def __init__(self, url: str, handlers: dict[str, Callable[[Any], Any]]) -> None:
        self.app = Sokka(url)
        for kind, handler in handlers.items():
            self.app.task(kind=kind, topic=TOPIC)(handler)
        self._thread = LoopThread()
        options = WorkerOptions(poll=0.2, grace=0)
        self.worker = self.app.worker([f"{TOPIC}:20", "workload:5"], options=options)
        self._run = self._thread.begin(self.worker.run())

    def close(self) -> None:
        self.worker.stop(now=True)
        self._run.result(LIMIT_S)
        self._thread.run(self.app.async_store.close())
        self.app.store.close()
        self._thread.close()


class Candidates:
    """What a candidate is told: ``{"answer": x}``, ``{"raise": text}``; with ``"hold"``,
    the name of a gate, it waits for that first. Knows how many ran at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[str, threading.Event] = {}
        self.running = self.most = 0
        self.begun: list[Any] = []

    def gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())

    def open_all(self) -> None:
        for gate in list(self._gates.values()):
            gate.set()

    def __call__(self, candidate: Any) -> Any:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.begun.append(candidate.get("answer"))
        try:
            if "hold" in candidate:
                assert self.gate(candidate["hold"]).wait(LIMIT_S)
            if "raise" in candidate:
                raise ValueError(candidate["raise"])
            return candidate.get("answer")
        finally:
            with self._lock:
                self.running -= 1


class Ground:
    """A face, and who works on its candidates: itself or workers."""

    def __init__(self, face: Face, by: str, url: str, candidates: Candidates) -> None:
        self.face, self.by, self.candidates = face, by, candidates
        self.url = url
        self._stack = ExitStack()
        self.stopped = threading.Event()

        def answer(data: Any) -> Any:
            return candidates(data)

        self.crew_handlers: dict[str, Callable[[Any], Any]] = {"candidate": answer}

    @property
    def invoker(self) -> Any:
        if self.by == "workers":
            return WorkerInvoker("candidate", TOPIC)
        return self.face.local(self.candidates)

    def with_crew(self) -> None:
        crew = Crew(self.url, self.crew_handlers)
        self._stack.callback(crew.close)

    def fan_out(self, request: Any) -> Any:
        return self.face(lambda s: s.fan_out(request, self.invoker))

    def scatter_gather(self, request: Any) -> Any:
        return self.face(lambda s: s.scatter_gather(request, self.invoker))

    def close(self) -> None:
        self.candidates.open_all()
        self.face.close()
        self._stack.close()
