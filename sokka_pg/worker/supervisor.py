"""Several worker processes under one supervisor, which runs no task itself.

It starts them, replaces one that dies, passes signals on and waits for all. Children
stand in sessions of their own: Ctrl-C on a terminal reaches the supervisor alone, which
passes it on once. Each holds the reading end of a pipe whose other end only the
supervisor has: when that ends, however it does, they notice and stop as if they were
told to.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from sokka_pg.engine.backoff import Backoff
from sokka_pg.errors import BadArgument, UsageError

log = logging.getLogger("sokka_pg.worker")

MOST_PROCESSES = 256
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
STEADY_S = 60.0
"""A process that lived so long starts anew at once when it dies."""
KILL_AFTER_S = 30.0
"""How long after the last moment a worker gives itself it is killed."""
WRONG_USAGE, NO_DATABASE = 2, 3

NUMBER, LIFELINE = "SOKKA_PROCESS", "SOKKA_LIFELINE"


class Supervisor:
    """Keeps ``count`` processes of one command running until told to stop.

    ``run`` returns the exit code: 0 when all ended well, after SIGTERM or SIGINT (they
    are let end; a second signal stops them now). A process that dies is replaced, at
    once if it had lived for a minute, else after a wait that doubles from half a second
    to 30 s. One that says it was started wrongly (exit code 2) ends all, and so does
    exit code 3 (no database) once none is left running. ``command`` is told its number,
    from 1, in ``SOKKA_PROCESS``; ``grace_s`` is how long a worker may take to end.
    """

    def __init__(
        self, command: Sequence[str], count: int, *, grace_s: float = 30.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if os.name != "posix":
            raise UsageError("processes: several need a POSIX system; start workers one by one")
        self.count = checked_count(count)
        self._command, self._grace_s = tuple(command), grace_s
        self._environment = dict(os.environ if environment is None else environment)
        self._alive: dict[int, asyncio.subprocess.Process] = {}
        self._codes: dict[int, int] = {}
        self._asked = 0
        self._given_up: int | None = None

    def run(self) -> int:
        """Start them and wait until all have ended. In the main thread."""
        return asyncio.run(self._run())

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        reading, self._writing = os.pipe()
        try:
            log.info("supervisor %s starts %s workers", os.getpid(), self.count)
            await asyncio.gather(*(self._keep(n, reading) for n in range(1, self.count + 1)))
        finally:
            os.close(reading)
            os.close(self._writing)
        if self._given_up is not None:
            return self._given_up
        return max((1 for code in self._codes.values() if code), default=0)

    def _signalled(self) -> None:
        self._asked += 1
        log.info("supervisor stops its workers%s", " now" if self._asked > 1 else "")
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping.set()
        for process in self._alive.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    async def _keep(self, number: int, lifeline: int) -> None:
        """Keep one process running."""
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        while not self._stopping.is_set():
            begun = monotonic()
            code = await self._one(number, lifeline)
            self._codes[number] = code
            if self._stopping.is_set() or self._gives_up(code):
                return
            if code == 0 or monotonic() - begun > STEADY_S:
                backoff.reset()
            wait = 0.0 if code == 0 else backoff.next_s()
            log.warning(
                "worker process %s ended with %s, starting another in %.1f s",
                number, _said(code), wait,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()

    async def _one(self, number: int, lifeline: int) -> int:
        """Run a process; its exit code, negative for a signal."""
        process = await asyncio.create_subprocess_exec(
            *self._command, pass_fds=(lifeline,), start_new_session=True,
            env={**self._environment, NUMBER: str(number), LIFELINE: str(lifeline)},
        )
        self._alive[number] = process
        if self._stopping.is_set():  # told while it was being started
            process.send_signal(signal.SIGTERM)
        killing = asyncio.create_task(self._kill_late(process))
        try:
            return await process.wait()
        finally:
            killing.cancel()
            del self._alive[number]

    async def _kill_late(self, process: asyncio.subprocess.Process) -> None:
        """A handler that holds the interpreter for ever hears no signal."""
        await self._stopping.wait()
        await asyncio.sleep(self._grace_s + KILL_AFTER_S)
        log.warning("worker process %s does not end, killing it", process.pid)
        with suppress(ProcessLookupError):
            process.kill()

    def _gives_up(self, code: int) -> bool:
        hopeless = code == WRONG_USAGE or (code == NO_DATABASE and not self._alive)
        if hopeless and self._given_up is None:
            self._given_up = code
            self._stop_all()
        return hopeless


def checked_count(count: object) -> int:
    """The number of processes. Raises BadArgument."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_PROCESSES:
        raise BadArgument.of("processes", f"a whole number from 1 to {MOST_PROCESSES}", count)
    return count


def process_number() -> int | None:
    """Which process of a supervisor this is, from 1; None without one."""
    said = os.environ.get(NUMBER, "")
    return int(said) if said.isascii() and said.isdigit() and said != "0" else None


def when_supervisor_ends(act: Callable[[], None]) -> None:
    """Call ``act``, from another thread, when this process's supervisor is gone. Takes
    the environment's word for it away, so that no child of ours believes it."""
    os.environ.pop(NUMBER, None)
    said = os.environ.pop(LIFELINE, None)
    if said is None:
        return
    threading.Thread(
        target=_wait_for_end, args=(int(said), act), name="sokka-lifeline", daemon=True
    ).start()


def _wait_for_end(lifeline: int, act: Callable[[], None]) -> None:
    with suppress(OSError):
        while os.read(lifeline, 1):
            pass  # nobody writes: what ends this is the end of the writer
    log.warning("the supervisor is gone, stopping")
    act()


def _said(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
