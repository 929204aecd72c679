"""Measures of a whole worker process: its rate, how soon it starts, its memory."""

from __future__ import annotations

import os
import random
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sokka_pg import calls
from sokka_pg.bench.figures import Figure, Ratio, at_most
from sokka_pg.bench.ground import Line
from sokka_pg.bench.trials import WORKER, Tell, Trial
from sokka_pg.errors import SokkaError

_PATIENCE_S = 120.0
_PICKUPS = 60
_WARM_UP = 5
_BACKLOG = 20_000
_SAMPLE_EVERY = 20_000
_MIB = 1024 * 1024


@contextmanager
def child(line: Line, topic: str, *act: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process on this topic; ended with the block."""
    environment = {**os.environ, "SOKKA_SCHEMA": line.schema, "SOKKA_DATABASE_URL": line.url}
    process = subprocess.Popen(
        [sys.executable, "-m", "sokka_pg.bench.child", topic, *act],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


def _drained(line: Line, topic: str, count: int) -> float:
    """Seconds from the first lease to the last record, by the database's clock."""
    with child(line, topic, "drain", str(count)) as process:
        _wait(process, _PATIENCE_S + count / 500)
    return float(
        line.ask(
            "select extract(epoch from max(finished_at) - min(leased_at))"
            " from sokka.finished_tasks where topic = %(topic)s",
            {"topic": topic},
        )
    )


TRIAL = Trial("worker", WORKER, _drained)


def _wait(process: subprocess.Popen[bytes], patience_s: float) -> None:
    try:
        _, said = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        raise SokkaError(f"the worker process was not done after {patience_s:.0f} s") from None
    if process.returncode:
        raise _died(process.returncode, said)


def _died(code: int, said: bytes) -> SokkaError:
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    return SokkaError(f"the worker process ended with {code}: {last}")


def pickup(line: Line, tell: Tell) -> tuple[list[Figure], list[Ratio]]:
    """How soon an idle worker starts a new task's handler."""
    from_commit: list[float] = []
    from_call: list[float] = []
    with child(line, "pickup", "echo") as process:
        for number in range(_PICKUPS + _WARM_UP):
            if number % 10 == 0:
                share = number / (_PICKUPS + _WARM_UP)
                tell(f"pickup by an idle worker ({number} of {_PICKUPS + _WARM_UP})", share)
            sent_ns = time.monotonic_ns()
            line.run(calls.create_task("pickup", {"number": number}))
            committed_ns = time.monotonic_ns()
            started_ns = _started(process, number)
            if number >= _WARM_UP:
                from_commit.append(max(0, started_ns - committed_ns) / 1e6)
                from_call.append((started_ns - sent_ns) / 1e6)
            time.sleep(random.uniform(0.05, 0.15))  # it must have gone idle again
    ratio = at_most(
        "latency", "median from commit to handler start, ms", statistics.median(from_commit), 10.0
    )
    return [*_latency("from commit", from_commit), *_latency("from the call", from_call)], [ratio]


def _latency(since: str, values_ms: list[float]) -> list[Figure]:
    p95 = statistics.quantiles(values_ms, n=20)[-1]
    return [
        Figure.of("latency", f"idle worker starts, {since}, median", values_ms, "ms"),
        Figure.of("latency", f"idle worker starts, {since}, 95th of 100", [p95], "ms"),
    ]


def _started(process: subprocess.Popen[bytes], number: int) -> int:
    assert process.stdout is not None  # noqa: S101  (it is a pipe)
    ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_S)
    text = process.stdout.readline().decode() if ready else ""
    if not text:
        said = process.communicate(timeout=10)[1] if process.poll() is not None else b""
        raise _died(process.returncode or 0, said)
    answered, moment_ns = text.split()
    if int(answered) != number:
        raise SokkaError(f"task {answered} was started in place of {number}")
    return int(moment_ns)


def soak(line: Line, tasks: int, tell: Tell) -> tuple[list[Figure], list[Ratio]]:
    """The memory of a worker process over many no-op tasks."""
    line.fill("soak", min(_BACKLOG, tasks))
    enqueued = min(_BACKLOG, tasks)
    samples: list[tuple[int, int]] = []
    with child(line, "soak", "drain", str(tasks)) as process:
        while process.poll() is None:
            waiting = int(line.ask("select count(*) from sokka.tasks"))
            done = enqueued - waiting
            if done >= (len(samples) + 1) * _SAMPLE_EVERY and (rss := resident(process.pid)):
                samples.append((done, rss))
                tell(f"soak: {done} of {tasks} done, {rss / _MIB:.1f} MiB", done / tasks)
            if waiting < _BACKLOG // 2 and enqueued < tasks:
                more = min(_BACKLOG // 2, tasks - enqueued)
                line.fill("soak", more)
                enqueued += more
            else:
                time.sleep(0.05)
        _wait(process, _PATIENCE_S)
    return _memory(samples, tasks)


def _memory(samples: list[tuple[int, int]], tasks: int) -> tuple[list[Figure], list[Ratio]]:
    if len(samples) < 4:
        raise SokkaError(f"--soak: too few tasks to tell; at least {5 * _SAMPLE_EVERY}")
    # The first tenth warms caches and pools up; growth is what comes after.
    settled = [rss for done, rss in samples if done >= tasks / 10]
    tenth = max(1, len(settled) // 10)
    early, late = statistics.median(settled[:tenth]), statistics.median(settled[-tenth:])
    figures = [
        Figure.of("soak", "memory after a tenth", [early / _MIB], "MiB"),
        Figure.of("soak", f"memory after {tasks} tasks", [late / _MIB], "MiB"),
        Figure.of("soak", "memory, all samples", [r / _MIB for _, r in samples], "MiB"),
    ]
    return figures, [at_most("soak", "memory at the end / after a tenth", late / early, 1.1)]


def resident(pid: int) -> int | None:
    """Bytes of memory a process holds; None if it is gone or nothing tells."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        pass
    try:
        told = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(pid)],  # noqa: S607
            capture_output=True, text=True, check=False, timeout=5,
        )  # fmt: skip
        return int(told.stdout) * 1024
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
