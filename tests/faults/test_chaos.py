"""The run of real processes in its short form, and the pure parts of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from sokka_pg import embedded
from tests import servers
from tests.faults.chaos import keeping, recorder
from tests.faults.chaos import plan as plans
from tests.faults.chaos.faults import PLAIN, fault
from tests.faults.chaos.words import FAIL, INFO, OK, Act, Bite, Left, Run, from_json, to_json
from tests.faults.waiting import until

ROOT = Path(__file__).parents[2]
LONGEST_S = 1_500
UNKNOWN, INTERRUPTED = 3, 130
NEEDS = {
    name: plans.Needs(tuple(made.variants), tuple(role.name for role in made.roles))
    for name in plans.SHAPES["storm"].faults for made in (fault(name),)
}


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.faults.chaos"]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "OUT": str(folder), **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:
        try:
            said, wrong = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            process.terminate()  # it takes down what it put up
            said, wrong = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, said, wrong)


def test_a_run_that_is_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.chaos"], cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OUT": str(tmp_path), "ACTS": "storm", "DURATION": "60s"},
    ) as process:
        try:
            until(lambda: list(tmp_path.glob("storm/history/producer*")), "the load", 120)
            assert _strangers(tmp_path) != []
        finally:
            process.terminate()
        assert process.wait(120) == INTERRUPTED
    assert _strangers(tmp_path) == []


@pytest.mark.long
def test_a_short_run_breaks_no_rule(server: servers.Server, tmp_path: Path) -> None:
    """All acts, all faults that this machine can have. A run in which some fault met nobody
    by chance proves nothing, and is played once more with other dice."""
    majors = {binaries.version for binaries in embedded.all_binaries()}
    given = {"PG": str(server.major)} if server.major in majors else {}
    for attempt in range(3):
        seed = str(random.SystemRandom().randrange(10**6))
        folder = tmp_path / f"run{attempt}"
        done = run(folder, DURATION="60s", SEED=seed, **given)
        if done.returncode != UNKNOWN:
            break
    assert done.returncode == 0, f"SEED={seed}, {folder}\n{done.stdout}\n{done.stderr}"
    assert "verdict: pass" in done.stdout
    assert (folder / "report.html").stat().st_size > 1_000
    assert _strangers(folder) == []


def _strangers(folder: Path) -> list[str]:
    """Processes that name the folder of a run in their environment: left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # gone, or not ours to read
    return found


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"DURATION": "soon"}, "DURATION: a number with s, m or h"),
        ({"ACTS": "storm,calm"}, "ACTS: some of storm"),
        ({"SEED": "seven"}, "SEED: a whole number"),
        ({"PG": "9"}, "PG: there is no PostgreSQL 9 here"),
        ({"MUTANT": "perfect"}, "MUTANT: all, or one of"),
    ],
)
def test_wrong_arguments_are_said_in_a_line(
    environment: dict[str, str], says: str, tmp_path: Path
) -> None:
    done = run(tmp_path, **environment)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


# --- the plan -------------------------------------------------------------------


def planned(seed: int, duration_s: float = 60, **impossible: str) -> plans.Plan:
    needs = {**NEEDS, "F16": plans.Needs(("old", "upgraded"))}
    return plans.plan(seed, duration_s, list(plans.SHAPES), needs, impossible, PLAIN)


def test_a_seed_is_a_plan() -> None:
    assert planned(3) == planned(3)
    assert planned(3) != planned(4)
    once, again = (planned(3).acts[0].dice("F1").random() for _ in range(2))
    assert once == again != planned(3).acts[0].dice("F2").random()


def test_what_cannot_run_is_left_out_with_its_reason() -> None:
    found = planned(1, F10="no root", F7="no namespaces")
    assert found.not_run == {"disk": "no root"}
    storm = found.acts[0]
    assert storm.not_run == {"F7": "no namespaces"}
    assert "F7" not in storm.faults
    assert "partitioned" not in {seat.variant for seat in storm.seats}


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_of_a_crew_meets_its_variants_and_roles(seed: int) -> None:
    seats = planned(seed).acts[0].seats
    assert len(seats) == len({seat.name for seat in seats}) == 8
    for needs in NEEDS.values():
        assert not needs.variants or {seat.variant for seat in seats} & set(needs.variants)
        assert set(needs.roles) <= {seat.role for seat in seats}
    pooled = [seat.role for seat in seats if seat.variant == "pooler"]
    assert pooled == [PLAIN], "it hands the settings of one role to another"


def test_the_time_of_a_run_is_shared_out() -> None:
    acts = {act.name: act.seconds for act in planned(1, 600).acts}
    assert acts["storm"] == pytest.approx(300)
    assert sum(acts.values()) == pytest.approx(600)
    assert min(act.seconds for act in planned(1, 5).acts) >= plans.SHORTEST_S


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("60s", 60), ("1.5m", 90), ("2h", 7200)])
def test_durations(text: str, seconds: float) -> None:
    assert plans.read_duration(text) == seconds


# --- what is filed as what ------------------------------------------------------


@pytest.mark.parametrize(
    ("sqlstate", "severity", "outcome"),
    [
        ("SK003", "ERROR", FAIL),
        ("40001", "ERROR", FAIL),
        ("57014", "ERROR", FAIL),
        ("53100", "ERROR", FAIL),
        ("25006", "ERROR", FAIL),
        ("53100", "PANIC", INFO),
        ("57P01", "FATAL", INFO),
        ("57P02", "FATAL", INFO),
        ("57P01", "ERROR", INFO),
        ("08006", "ERROR", INFO),
        ("08P01", "FATAL", INFO),
        ("XX000", "ERROR", INFO),
        ("40003", "ERROR", INFO),
        (None, None, INFO),
        ("", "ERROR", INFO),
    ],
)
def test_only_what_certainly_did_not_happen_failed(
    sqlstate: str | None, severity: str | None, outcome: str
) -> None:
    assert recorder.outcome_of(sqlstate, severity) == outcome


@pytest.mark.parametrize(
    "error",
    [
        psycopg.OperationalError("server closed the connection unexpectedly"),
        errors.AdminShutdown("terminating connection"),
        KeyboardInterrupt(),
        TimeoutError(),
    ],
)
def test_an_answer_that_was_lost_is_unknown(error: BaseException) -> None:
    assert recorder.outcome_of_error(error) == INFO


def test_columns_are_named_as_sql_names_them() -> None:
    expressions = [
        "r.task_id", "cast(r.data as text)", "(r.task).topic",
        "cast(extract(epoch from r.lease) as double precision)", "cast((r.task).data as text)", "1",
    ]
    assert recorder.column_names(expressions) == [
        "task_id", "data", "topic", "lease", "data", "column5",
    ]


def test_a_killed_process_leaves_its_calls_unknown(tmp_path: Path) -> None:
    lines = [
        {"k": "process", "process": "w1-7", "pid": "w1.1", "t": 1},
        {"k": "invoke", "n": 1, "f": "sweep", "a": {"max_tasks": "9"}, "x": None, "t": 10},
        {"k": "ok", "n": 1, "r": [{"woken": 2}], "t": 20},
        {"k": "begin", "n": 1, "t": 30},
        {"k": "invoke", "n": 2, "f": "assert_lease", "a": {}, "x": 1, "t": 31},
        {"k": "fail", "n": 2, "t": 40, "s": "SK003", "m": "not yours", "d": {"token": 5}},
        {"k": "commit", "n": 1, "o": "fail", "t": 41},
        {"k": "begin", "n": 2, "t": 50},
        {"k": "invoke", "n": 3, "f": "terminate_task", "a": {}, "x": 2, "t": 51},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"k":"ok","n":3,"r":[{'
    (tmp_path / "w1-7.jsonl").write_text(text)
    calls, transactions = keeping.read_history(tmp_path)
    assert [(call.outcome, call.ended) for call in calls] == [(OK, 20), (FAIL, 40), (INFO, None)]
    assert [(t.outcome, t.ended) for t in transactions] == [(FAIL, 41), (INFO, None)]
    assert calls[0].rows == [{"woken": 2}]
    assert (calls[1].sqlstate, calls[1].detail, calls[1].transaction) == ("SK003", {"token": 5}, 1)
    assert {call.pid for call in calls} == {"w1.1"}


def test_words_come_back_from_json_as_they_were() -> None:
    act = Act("storm", 18, 1.5, 1, 2, 3, bites=[Bite("F1", 2, "two")])
    act.after.left.append(Left("a lock", "w1"))
    told = Run(7, 60.0, {"acts": []}, {"python": "3"}, [act], {"disk": "no root"})
    assert from_json(Run, json.loads(json.dumps(to_json(told)))) == told
