"""``sokka bench`` measures on ground of its own. What it measures is not asserted."""

from __future__ import annotations

import psycopg
import pytest

from sokka_pg.bench import PARTS, Figure, Plan, figures, steady, trials, workers
from sokka_pg.bench.ground import PREFIX
from sokka_pg.errors import BadArgument
from sokka_pg.store import PgTaskStore
from tests.cli.conftest import Sokka


def scratch_schemas(conn: psycopg.Connection) -> list[str]:
    query = "select nspname from pg_namespace where starts_with(nspname, %s)"
    rows = conn.execute(query, (PREFIX,))
    return [row[0] for row in rows]


def test_short_parts_give_figures_with_settings_and_leave_nothing(
    sokka: Sokka, db: str, conn: psycopg.Connection
) -> None:
    with PgTaskStore(db) as store:
        waiting = store.create_task("mail")
        answer = sokka(
            "bench", "--only", "enqueue,verbs,hot,pinned", "--tasks", 1_000, "--rounds", 1, "--json"
        )
        assert store.task(waiting.task_id) == waiting.task
    assert answer.code == 0, answer.err
    found = answer.json
    assert found["environment"]["server"]["server_version"]
    assert found["environment"]["plan"]["tasks"] == 1_000
    assert {figure["part"] for figure in found["figures"]} == {"enqueue", "verbs", "hot", "pinned"}
    assert all(figure["median"] > 0 for figure in found["figures"])
    assert {ratio["part"] for ratio in found["ratios"]} == {"verbs", "hot", "pinned"}
    assert scratch_schemas(conn) == []


def test_a_worker_process_is_measured_beside_single_calls(
    sokka: Sokka, conn: psycopg.Connection
) -> None:
    answer = sokka("bench", "--only", "worker", "--tasks", 1_000, "--rounds", 1)
    assert answer.code == 0, answer.err
    assert trials.WORKER in answer.out
    assert trials.SINGLE in answer.out
    assert scratch_schemas(conn) == []


def test_finished_tasks_are_made_beside_a_schema_without(
    sokka: Sokka, conn: psycopg.Connection
) -> None:
    answer = sokka(
        "bench", "--only", "none", "--finished", 2_000, "--tasks", 1_000, "--rounds", 1, "--json"
    )
    assert answer.code == 0, answer.err
    assert len(answer.json["ratios"]) == 2
    assert scratch_schemas(conn) == []


def test_what_a_killed_bench_left_goes_and_a_running_one_stays(
    sokka: Sokka, conn: psycopg.Connection
) -> None:
    conn.execute(f"create schema {PREFIX}dead")
    conn.execute(f"create schema {PREFIX}alive")
    conn.execute(
        "select pg_advisory_lock_shared(hashtext('sokka bench'), hashtext(%s))", (f"{PREFIX}alive",)
    )
    assert sokka("bench", "--only", "hot").code == 0
    assert scratch_schemas(conn) == [f"{PREFIX}alive"]


@pytest.mark.parametrize(
    "args",
    [
        ["--only", "speed"], ["--only", ""], ["--tasks", "10"], ["--rounds", "0"],
        ["--finished", "-1"], ["--soak", "-1"],
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_wrong_usage(sokka: Sokka, args: list[str]) -> None:
    answer = sokka("bench", *args)
    assert answer.code == 2
    assert args[0] in answer.err


def test_a_figure_is_the_median_of_its_runs() -> None:
    found = Figure.of("verbs", "x", [3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.runs) == (2.0, 1.0, 3.0, 3)


def test_ratios_compare_with_single_calls_and_name_what_is_wanted() -> None:
    single = Figure.of("verbs", trials.SINGLE, [100.0])
    worker = Figure.of("worker", trials.WORKER, [450.0])
    (found,) = trials.ratios([single, worker])
    assert (found.value, found.wanted, found.reached) == (4.5, ">= 5", False)
    assert trials.ratios([worker]) == []
    assert figures.at_most("x", "y", 1.5, 1.5).reached


def test_growth_of_memory_shows_against_the_first_tenth() -> None:
    steady_samples = [(n * 10, 100) for n in range(1, 101)]
    growing = [(n * 10, 100 + n) for n in range(1, 101)]
    assert workers._memory(steady_samples, 1_000)[1][0].reached
    assert not workers._memory(growing, 1_000)[1][0].reached


def test_every_part_has_work_behind_it() -> None:
    assert Plan().parts == PARTS
    with pytest.raises(BadArgument):
        Plan(parts=("soak",))
    assert steady.FIFTHS == 5
