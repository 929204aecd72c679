"""Each fault of the run of real processes has an effect, counts it, and heals."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.faults import programs
from tests.faults.chaos.faults import FAULTS, PLAIN, Fault, fault
from tests.faults.chaos.faults.clocks import WrongClocks
from tests.faults.chaos.faults.disk import SmallDisk
from tests.faults.fault_ground import Ground
from tests.servers import Server

DIRECT = ("direct", PLAIN)
TRIALS: dict[str, tuple[tuple[tuple[str, str], ...], float]] = {
    "F1": ((DIRECT, DIRECT), 4),
    "F2": ((DIRECT, DIRECT), 5),
    "F3": ((DIRECT,), 4),
    "F4": ((DIRECT,), 4),
    "F5": ((DIRECT,), 4),
    "F6": ((("proxied", PLAIN), ("proxied", PLAIN)), 6),
    "F7": ((("partitioned", PLAIN),), 4),
    "F11": ((("direct", "chaos_few"), DIRECT), 5),
    "F12": ((("direct", "chaos_short"),), 4),
    "F13": ((DIRECT,), 9),
    "F14": ((DIRECT,), 2),
    "F15": ((("pooler", PLAIN),), 5),
    "F17": ((("direct", "chaos_plans"),), 3),
    "F18": ((("direct", "chaos_serializable"), ("direct", "chaos_repeatable")), 2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", TRIALS)
def test_it_bites_and_heals(name: str, server: Server, tmp_path: Path) -> None:
    made = fault(name)
    if made.possible(None) is not None:
        return  # the run's report says so; see the last tests
    seats, seconds = TRIALS[name]
    with Ground(server.major, tmp_path, made) as ground:
        assert made.possible(ground) is None
        ground.hire(seats)
        for seed in range(4):
            # whom a shot hits is chance, and a busy machine has fewer of them
            bite = ground.play(seconds, seed)
            if bite.count:
                break
        assert bite.count > 0, bite
        assert bite.fault == name
        assert ground.injections
        assert all(each.ended is not None for each in ground.injections)
        ground.works_again()
        _nothing_is_left(ground)


@pytest.mark.long
@pytest.mark.parametrize("name", ["F2", "F3", "F4", "F5", "F6", "F7", "F11", "F13"])
def test_it_heals_when_it_is_cancelled_in_the_middle(
    name: str, server: Server, tmp_path: Path
) -> None:
    made = fault(name)
    if made.possible(None) is not None:
        return
    with Ground(server.major, tmp_path, made) as ground:
        ground.hire(TRIALS[name][0])
        made.period_s = 0.1  # type: ignore[attr-defined]  # one shot after the other
        asyncio.run(_cancelled(made, ground, 1.2))
        assert all(each.ended is not None for each in ground.injections)
        ground.works_again()
        _nothing_is_left(ground)


async def _cancelled(made: Fault, ground: Ground, after_s: float) -> None:
    run = asyncio.create_task(made.run(ground, random.Random(5), time.monotonic() + 60))
    await asyncio.sleep(after_s)
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()


def _nothing_is_left(ground: Ground) -> None:
    with ground.asking() as asking:
        assert asking.execute("show synchronous_standby_names").fetchone() == ("",)
        for query in (
            "select rolname from pg_roles where rolname like 'chaos%' and rolconnlimit <> -1",
            "select relname from pg_class where relname like 'chaos%'"
            " or array_to_string(reloptions, ',') like '%autovacuum_enabled=off%'",
            "select pid from pg_stat_activity"
            " where application_name = 'chaos' and pid <> pg_backend_pid()",
        ):
            assert asking.execute(query).fetchall() == []


@pytest.mark.long
def test_clocks_are_off_and_their_workers_work(server: Server, tmp_path: Path) -> None:
    made = fault("F8")
    if made.possible(None) is not None:
        return
    with Ground(server.major, tmp_path, made) as ground:
        ground.hire([(variant, PLAIN) for variant in ("clock-behind", "clock-step")])
        ground.play(2.5)
        assert isinstance(made, WrongClocks)
        off = {clock.variant: clock.off_s for clock in made.clocks.values()}
        assert off["clock-behind"] == pytest.approx(-300, abs=5)
        assert off["clock-step"] == pytest.approx(-90, abs=5)
        ground.works_again()


@pytest.mark.long
@pytest.mark.parametrize("variant", ["clock-fast", "clock-slow", "clock-ahead"])
def test_a_worker_of_another_pace_ends_its_tasks(
    variant: str, server: Server, tmp_path: Path
) -> None:
    made = fault("F8")
    if made.possible(None) is not None:
        return
    with Ground(server.major, tmp_path, made) as ground:
        ground.hire([(variant, PLAIN)])
        ground.play(1)
        ground.works_again()


@pytest.mark.long
def test_a_full_disk_is_felt_and_the_server_is_up_when_it_is_freed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fault("F10")
    if made.possible(None) is not None:
        return
    monkeypatch.setattr(made, "FULL_S", 2.0, raising=True)
    with SmallDisk() as disk, Ground(server.major, tmp_path, made, disk) as ground:
        ground.hire([DIRECT])
        bite = ground.play(6)
        assert bite.count > 0, bite
        assert not disk.filler.exists()
        ground.works_again()
    assert not disk.folder.exists()


class _People:
    """An operator who only counts."""

    def __init__(self) -> None:
        self.accepted: Counter[str] = Counter()

    async def act(self, dice: random.Random) -> str:
        await asyncio.sleep(0)
        self.accepted["revoke"] += 1
        return "revoke"


def test_operators_are_at_work_until_the_end(server: Server, tmp_path: Path) -> None:
    made = fault("F20")
    with Ground(server.major, tmp_path, made) as ground:
        ground.operators = _People()
        bite = ground.play(3)
    assert bite.count == len(ground.injections) > 0
    assert {each.about for each in ground.injections} == {"revoke"}


def test_producers_are_told_to_bring_hostile_data_for_a_while(
    server: Server, tmp_path: Path
) -> None:
    made = fault("F19")
    with Ground(server.major, tmp_path, made) as ground:

        async def looked() -> float:
            loop = asyncio.get_running_loop()
            run = asyncio.create_task(made.run(ground, random.Random(1), loop.time() + 60))
            await asyncio.sleep(0.1)
            share = ground.load.poison_share
            ground.load.poisoned, ground.load.refused = 5, 3
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            return share

        assert asyncio.run(looked()) == 0.01
        assert ground.load.poison_share == 0.0
        assert made.bites(ground.act()).count == 5


def test_every_row_of_the_table_has_a_name() -> None:
    assert list(FAULTS) == [f"F{n}" for n in range(1, 21)]


@pytest.mark.parametrize(("name", "reason"), [("F7", "needs root"), ("F10", "needs root")])
def test_without_root_it_says_why_it_cannot_run(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert reason in str(fault(name).possible(None))


@pytest.mark.parametrize(
    ("name", "program"), [("F8", "faketime"), ("F15", "pgbouncer")]
)
def test_without_its_program_it_says_why_it_cannot_run(
    name: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "find", lambda program: None)
    assert program in str(fault(name).possible(None))


def test_a_full_disk_needs_an_act_with_a_small_one(server: Server, tmp_path: Path) -> None:
    with Ground(server.major, tmp_path, fault("F10")) as ground:
        assert "small disk" in str(ground.fault.possible(ground))
