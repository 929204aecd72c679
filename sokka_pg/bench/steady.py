"""What must not get worse: under an old snapshot, beside many finished tasks, by heartbeats."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise

from sokka_pg import calls
from sokka_pg.bench.figures import Figure, Ratio, at_least, at_most
from sokka_pg.bench.ground import Line, pairs
from sokka_pg.bench.trials import BATCH, PID, Tell, Trial, drain, interleaved, one_by_one, timed
from sokka_pg.bench.trials import settle_and_reserve as whole_topic

FIFTHS = 5
_LEASES = 200
_HEARTBEATS = 50
_PREFILL = 100_000
_STATS_WAIT_S = 10.0


def pinned(
    line: Line, tasks: int, rounds: int, tell: Tell
) -> tuple[list[Figure], list[Ratio]]:
    """The rate by fifths while another session holds an old snapshot."""
    by_round = [_pinned_once(line, f"pinned {turn}", tasks, tell) for turn in range(rounds)]
    figures = [
        Figure.of("pinned", f"fifth {i} under a pinned snapshot", rates)
        for i, rates in enumerate(zip(*by_round, strict=True), start=1)
    ]
    last_to_first = statistics.median(rates[-1] / rates[0] for rates in by_round)
    return figures, [at_least("pinned", "last fifth / first fifth", last_to_first, 0.8)]


def _pinned_once(line: Line, topic: str, tasks: int, tell: Tell) -> list[float]:
    tell(f"{topic}: enqueue {tasks} tasks")
    line.fill(topic, tasks)
    holder = Line(line.url, line.schema)
    try:
        holder.ask("begin isolation level repeatable read")
        holder.ask("select count(*) from sokka.settings")
        tell(f"{topic}: work them off")
        return _rates_by_fifth(line, topic, tasks)
    finally:
        holder.close()


def _rates_by_fifth(line: Line, topic: str, tasks: int) -> list[float]:
    marks = [time.perf_counter()]
    done = 0

    def after_batch(count: int) -> None:
        nonlocal done
        done += count
        if done >= len(marks) * tasks // FIFTHS and len(marks) <= FIFTHS:
            marks.append(time.perf_counter())

    drain(line, topic, after_batch)
    return [tasks / FIFTHS / (end - begun) for begun, end in pairwise(marks)]


def hot(line: Line, tell: Tell) -> tuple[list[Figure], list[Ratio]]:
    """The share of extends and progress reports that touch no index."""
    tell("extend leases and report progress")
    line.fill("hot", _LEASES)
    leased = line.run(calls.reserve_tasks(["hot"], PID, _LEASES))
    before = _updates(line, at_least_updates=0)
    for beat in range(_HEARTBEATS):
        line.run(calls.extend_leases(PID, pairs(leased)))
        for each in leased[:: _LEASES // 20]:
            line.run(calls.report_progress(each.lease, {"done": beat, "of": _HEARTBEATS}))
    expected = before[0] + _HEARTBEATS * (_LEASES + 20)
    after = _updates(line, expected)
    line.run(calls.terminate_many(PID, pairs(leased)))
    updates = after[0] - before[0]
    share = (after[1] - before[1]) / updates if updates else 0.0
    figure = Figure.of("hot", "HOT share of extends and progress", [100 * share], "%")
    return [figure], [at_least("hot", "HOT / all updates by heartbeats", share, 0.95)]


def _updates(line: Line, at_least_updates: int) -> tuple[int, int]:
    """Updates of the table of live tasks, and HOT ones, once the server has counted them."""
    if int(line.ask("select current_setting('server_version_num')")) >= 150000:
        line.ask("select pg_stat_force_next_flush()")
    give_up_at = time.monotonic() + _STATS_WAIT_S
    while True:
        text = line.ask(
            "select n_tup_upd || ' ' || n_tup_hot_upd from pg_stat_user_tables"
            " where schemaname = 'sokka' and relname = 'tasks'"
        )
        updates, hot_updates = map(int, str(text or "0 0").split())
        if updates >= at_least_updates or time.monotonic() > give_up_at:
            return updates, hot_updates
        time.sleep(0.1)


def finished(
    without: Line, beside: Line, rows: int, tasks: int, rounds: int, tell: Tell
) -> tuple[list[Figure], list[Ratio]]:
    """The same work in a schema with ``rows`` finished tasks and in one with none."""
    prefill(beside, rows, tell)
    rates: dict[tuple[str, str], list[float]] = {}
    works = (
        Trial("finished", "one by one", timed(one_by_one), 0.05),
        Trial("finished", f"settle_and_reserve of {BATCH}", timed(whole_topic)),
    )
    for turn in range(rounds):
        lines = (("none", without), (f"{rows}", beside))
        for label, line in lines if turn % 2 else reversed(lines):
            for figure in interleaved(works, line, tasks, 1, tell):
                rates.setdefault((figure.name, label), []).append(figure.median)
    return _compared(rates, [work.name for work in works], f"{rows}")


def _compared(
    rates: dict[tuple[str, str], list[float]], names: Sequence[str], label: str
) -> tuple[list[Figure], list[Ratio]]:
    figures, ratios = [], []
    for name in names:
        none = Figure.of("finished", f"{name}, no finished task", rates[name, "none"])
        many = Figure.of("finished", f"{name}, {label} finished tasks", rates[name, label])
        figures += [none, many]
        slower = none.median / many.median
        ratios.append(at_most("finished", f"{name}: time beside them / without", slower, 1.5))
    return figures, ratios


def prefill(line: Line, rows: int, tell: Tell) -> None:
    for first in range(0, rows, _PREFILL):
        tell(f"prefill finished tasks: {first} of {rows}", first / rows)
        line.ask(_FINISHED, {"rows": min(_PREFILL, rows - first)})
    tell("vacuum them")
    line.ask("vacuum (analyze) sokka.finished_tasks")


# Spread over the present week, which has a partition.
_FINISHED = """
    insert into sokka.finished_tasks (
        task_id, task_group_id, created_at, finished_at, run_at, record_ver, event_seq, priority,
        attempt, failures, losses, max_attempts, max_losses, data_aside, status, topic, sub_topic,
        kind, token, reserved_seq, leased_at, lease_expires_at, pid, checkpoint_seq, data, result)
    select id, id, at, at, at, 3, 3, 5, 1, 0, 0, 1, 5, false, 'terminated', 'before', 'default',
           'default', n, 2, at, at + interval '30 seconds', 'bench', 0,
           '{"to": "someone@example.org", "order": 12345}', 'null'
      from (select gen_random_uuid() as id, n,
                   sokka.week_start(now()) + random() * interval '167 hours' as at
              from generate_series(1, %(rows)s) n) made
"""
