"""The producers of an act: a process of their own that enqueues until it is told to stop.

They keep the number of unfinished tasks below a bound, so that each act has as many tasks
as its workers can take, and a drain that ends. What they call is recorded like a worker's
calls; whoever steers them (``Load``) sits in the process of the run.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import make_conninfo

from sokka_pg.connections import ConnectionOptions
from sokka_pg.errors import BadArgument, SokkaError
from sokka_pg.lease_keeper import shut
from sokka_pg.store import PgTaskStore
from tests.faults.chaos import loads, recorder
from tests.faults.chaos.faults import PLAIN
from tests.faults.chaos.parent import PARENT, die_with_parent

if TYPE_CHECKING:
    from tests.faults.chaos.scene import Scene

ROOT = Path(__file__).parents[3]
BOUND = 400
THREADS = 3
LOOK_EVERY_S = 0.05
AWAY_S = 0.1
STOP_S = 15.0


# --- the process ----------------------------------------------------------------


class Producers:
    """Some threads that enqueue, and one that looks how many tasks are unfinished."""

    def __init__(self, url: str, look_url: str, lease_s: float, seed: int, bound: int) -> None:
        self._url, self._look_url, self._lease_s, self._bound = url, look_url, lease_s, bound
        self._seed = seed
        self.store = PgTaskStore(url, options=ConnectionOptions(max_size=THREADS))
        self._orders = itertools.count(1)
        self.stopped = threading.Event()
        self._room = threading.Event()
        self.poison_share = 0.0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        threads = [threading.Thread(target=self._look)]
        threads += [threading.Thread(target=self._produce, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.store.close()

    def _look(self) -> None:
        while not self.stopped.is_set():
            with suppress(psycopg.Error), closing(
                psycopg.connect(self._look_url, autocommit=True)
            ) as asking:
                while not self.stopped.wait(LOOK_EVERY_S):
                    row = asking.execute("select count(*) from sokka.tasks").fetchone()
                    if row is not None and row[0] < self._bound:
                        self._room.set()
                    else:
                        self._room.clear()
            # nobody knows how many there are while the server is away
            self._room.clear()
            self.stopped.wait(AWAY_S)

    def _produce(self, number: int) -> None:
        dice = random.Random(f"{self._seed}/{number}")
        while not self.stopped.is_set():
            if not self._room.wait(AWAY_S):
                continue
            try:
                self._once(dice)
            except (SokkaError, psycopg.Error) as error:
                self.counts[type(error).__name__] += 1
                self.stopped.wait(0.02)

    def _once(self, dice: random.Random) -> None:
        if dice.random() < self.poison_share * 6:  # a turn makes about six tasks
            return self._poisoned(dice)
        (turn,) = dice.choices(
            (self._single, self._bulk, self._keyed, self._transaction, self._impatient),
            (10, 4, 3, 3, 1),
        )
        turn(dice)

    def _poisoned(self, dice: random.Random) -> None:
        found = {**loads.poison(dice), "headers": self._order()}
        self.counts["poisoned"] += 1
        try:
            self._create(found)
        except BadArgument:
            self.counts["refused"] += 1

    def _spec(self, dice: random.Random) -> loads.Spec:
        found, now, chance = loads.spec(dice, self._lease_s), datetime.now(UTC), dice.random()
        found["headers"] = self._order()
        if chance < 0.12:
            return loads.delayed(found, dice, now)
        if chance < 0.15:
            return loads.expiring(found, dice, now)
        return found

    def _order(self) -> dict[str, str]:
        """A number of each task that is wanted: one that is made twice shows."""
        return {"order": f"{os.getpid()}-{next(self._orders)}"}

    def _single(self, dice: random.Random) -> None:
        found = self._spec(dice)
        if dice.random() < 0.2:
            # with an id of ours the store repeats a call whose answer was lost
            found["task_id"] = _uuid(dice)
        self._create(found)

    def _bulk(self, dice: random.Random) -> None:
        specs = [self._spec(dice) for _ in range(dice.randint(5, 40))]
        self.store.create_tasks(specs)
        self.counts["attempted"] += len(specs)

    def _keyed(self, dice: random.Random) -> None:
        self._create(loads.keyed(self._spec(dice), dice))

    def _create(self, found: loads.Spec, connection: Any = None) -> None:
        self.counts["attempted"] += 1
        rest = {key: value for key, value in found.items() if key not in ("topic", "data")}
        self.store.create_task(found["topic"], found["data"], connection=connection, **rest)

    def _transaction(self, dice: random.Random) -> None:
        """Tasks in a transaction of the caller, who may think better of it."""
        with closing(psycopg.connect(self._url, autocommit=True)) as mine:
            chance = dice.random()
            with suppress(_Regret), mine.transaction():
                for _ in range(dice.randint(1, 3)):
                    self._create(self._spec(dice), mine)
                if chance < 0.2:
                    raise _Regret
                if chance < 0.3:
                    mine.pgconn.finish()  # as a caller that dies
                    raise _Regret


    def _impatient(self, dice: random.Random) -> None:
        """A caller who does not wait for the answer: nobody knows whether they were made."""
        with closing(psycopg.connect(self._url, autocommit=True)) as mine:
            specs = [self._spec(dice) for _ in range(dice.randint(1, 20))]
            self.counts["attempted"] += len(specs)
            timer = threading.Timer(dice.uniform(0.001, 0.01), shut, (mine,))
            timer.start()
            try:
                self.store.create_tasks(specs, connection=mine)
            finally:
                timer.cancel()
                timer.join()


class _Regret(Exception):
    """The caller rolls back."""


def _uuid(dice: random.Random) -> str:
    # not from the seed: two runs on one database must not meet
    return f"{dice.getrandbits(32):08x}-{os.urandom(2).hex()}-4{os.urandom(2).hex()[1:]}-" + (
        f"8{os.urandom(2).hex()[1:]}-{os.urandom(6).hex()}"
    )


def main() -> None:
    """Reads what to do from standard input, one JSON object a line; tells what it did."""
    told = json.loads(sys.stdin.readline())
    die_with_parent()
    recorder.install_from_environment()
    if defect := os.environ.get("CHAOS_MUTANT"):
        from tests.faults.chaos import mutants

        mutants.apply(defect)
    producers = Producers(**told)
    work = threading.Thread(target=producers.run)
    work.start()
    threading.Thread(target=_tell, args=(producers,), daemon=True).start()
    for line in sys.stdin:
        order = json.loads(line)
        producers.poison_share = order.get("poison", producers.poison_share)
        if order.get("stop"):
            break
    producers.stopped.set()
    work.join()
    print(json.dumps(producers.counts), flush=True)


def _tell(producers: Producers) -> None:
    while True:
        time.sleep(0.5)
        print(json.dumps(producers.counts), flush=True)


# --- who steers it ----------------------------------------------------------------


class Load:
    """The producers, seen from the run."""

    def __init__(self, scene: Scene, seed: int, environment: dict[str, str]) -> None:
        self._scene, self._seed, self._environment = scene, seed, environment
        self._process: subprocess.Popen[str] | None = None
        self._counts: dict[str, int] = {}
        self._share = 0.0

    @property
    def poison_share(self) -> float:
        return self._share

    @poison_share.setter
    def poison_share(self, share: float) -> None:
        self._share = share
        self._say({"poison": share})

    @property
    def poisoned(self) -> int:
        return self._counts.get("poisoned", 0)

    @property
    def refused(self) -> int:
        return self._counts.get("refused", 0)

    @property
    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    def start(self, bound: int = BOUND) -> None:
        scene = self._scene
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), PARENT: str(os.getpid()), **self._environment,
            recorder.FOLDER: str(scene.folder / "history"), recorder.NAME: "producer",
        }
        with (scene.folder / "logs" / "producers.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.chaos.producers"], cwd=ROOT,
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )
        self._say({
            "url": make_conninfo(
                scene.url(PLAIN), application_name="sokka_pg_producer", connect_timeout=3
            ),
            "look_url": scene.url(), "lease_s": scene.lease_s, "seed": self._seed,
            "bound": bound,
        })
        threading.Thread(target=self._listen, daemon=True).start()

    def stop(self) -> None:
        """Blocks until the last call is answered, or for some seconds."""
        if self._process is None:
            return
        self._say({"stop": True})
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait(STOP_S)
            if self._process.stdin is not None:
                with suppress(OSError):
                    self._process.stdin.close()

    def _say(self, order: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(json.dumps(order) + "\n")
                self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        with self._process.stdout as told:
            for line in told:
                with suppress(ValueError):
                    self._counts = json.loads(line)


if __name__ == "__main__":
    main()
