"""Processes for handlers that must be killable.

A child runs one task at a time and is kept for the next. It is killed when its
task is to stop; only that task notices. Children are started afresh (spawn), so
they inherit no connection, thread or lock.
"""

from __future__ import annotations

import multiprocessing
import threading
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from sokka_pg.engine import outcomes
from sokka_pg.engine.words import Settlement, Verb
from sokka_pg.runner.attempt import Attempt
from sokka_pg.runner.child import Job, Reply, serve

JOIN_S = 2.0


class Child:
    """A process and the pipe to it."""

    def __init__(self, database_url: str, schema: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(
            target=serve, args=(theirs, database_url, schema),
            name="sokka-child", daemon=True,
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def run(self, job: Job) -> Reply | int:
        """The reply, or the exit code of a child that died over the job."""
        pipe: Connection[Any, Any] = self._pipe
        try:
            pipe.send(job)
            wait([pipe, self._process.sentinel])
            if pipe.poll():
                reply: Reply = pipe.recv()
                return reply
        except (EOFError, OSError):
            pass  # it died; the exit code says how
        self._process.join(JOIN_S)
        return self._process.exitcode or 0

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.join(JOIN_S)
        self._pipe.close()


class Children:
    """The children of one worker."""

    def __init__(self, database_url: str, schema: str) -> None:
        self._given = (database_url, schema)
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._closed = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._all)

    def run(self, attempt: Attempt) -> Settlement | None:
        """Run an attempt in a child; blocks this thread until it ends."""
        try:
            child = self._take()
        except Exception as exc:  # no process to be had: the attempt failed, not the worker
            return attempt.ended_by(exc)
        attempt.kill = child.kill
        if attempt.reason is not None:  # told to stop before there was something to kill
            self._give_back(child)
            return attempt.halted()
        answer = child.run(Job(attempt.spec.import_path, attempt.task))
        attempt.kill = None
        if isinstance(answer, Reply) and attempt.reason is None:
            self._give_back(child)
        else:
            self._discard(child)
        return _settlement(attempt, answer)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            children, self._all = self._all, set()
            self._idle.clear()
        for child in children:
            child.close()

    def _take(self) -> Child:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        child = Child(*self._given)
        with self._lock:
            self._all.add(child)
        return child

    def _give_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.close()

    def _discard(self, child: Child) -> None:
        with self._lock:
            self._all.discard(child)
        child.close()


def _settlement(attempt: Attempt, answer: Reply | int) -> Settlement | None:
    if isinstance(answer, int):
        if attempt.reason is not None:
            return attempt.halted()
        message = f"the handler's process ended with exit code {answer}"
        return outcomes.retry(attempt.task, {"code": "child_died", "message": message})
    if answer.verb is None:
        attempt.context.terminated = answer.lost is None
        return None
    if attempt.reason is not None:
        return attempt.halted()
    return Settlement(attempt.task, Verb(answer.verb), answer.arg)
