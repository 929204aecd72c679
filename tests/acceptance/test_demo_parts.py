"""The demo's parts that need no server: choosing, measuring, judging, showing."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from sokka_pg.cli.demo_display import LineTeller, LiveTeller
from sokka_pg.demo import sources
from sokka_pg.demo.journal import Journal, Lines
from sokka_pg.demo.measure import Measurement, measure
from sokka_pg.demo.telling import DemoFailed, HandView, Patience, Snapshot
from sokka_pg.demo.verdict import Evidence, judge


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b"def f(:\n", "SyntaxError"),
        (b"# -*- coding: no-such-coding -*-\n", "SyntaxError"),
        (b"\xff\xfe\xfa", "SyntaxError"),
        (b"print 'two'\n", "SyntaxError"),
    ],
)
def test_what_cannot_be_parsed_is_a_measurement_too(
    tmp_path: Path, source: bytes, error: str
) -> None:
    (tmp_path / "bad.py").write_bytes(source)
    found = measure(tmp_path / "bad.py")
    assert (found.error, found.nodes) == (error, None)
    assert found.sha256 is not None and found.lines == 1


@pytest.mark.parametrize("source", [b"a\0b", b"(" * 100_000, b"-" * 100_000 + b"1"])
def test_no_source_makes_measuring_raise(tmp_path: Path, source: bytes) -> None:
    (tmp_path / "odd.py").write_bytes(source)
    assert measure(tmp_path / "odd.py").error is not None


def test_a_file_that_is_gone_is_a_measurement_too(tmp_path: Path) -> None:
    assert measure(tmp_path / "gone.py") == Measurement(error="FileNotFoundError")


def test_functions_classes_and_nodes_are_counted(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("class A:\n    def f(self): ...\nasync def g(): ...\n")
    found = measure(tmp_path / "good.py")
    assert (found.lines, found.functions, found.classes, found.error) == (3, 2, 1, None)


def test_files_come_largest_first_and_evenly_chosen() -> None:
    every, few = sources.find(), sources.find(20)
    sizes = [file.size for file in every.files]
    assert sizes == sorted(sizes, reverse=True)
    assert len(few.files) == 20 and set(few.files) <= set(every.files)
    assert few.files[0] == every.files[0]
    priorities = [priority for _, priority in every.priorities()]
    assert priorities == sorted(priorities) and set(priorities) == set(range(10))


def test_a_small_library_is_helped_out_by_site_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "ENOUGH", 10**9)
    found = sources.find()
    tops = {tuple(file.name.split("/")[:2]) for file in found.files}
    assert ("site-packages", "psycopg") in tops
    assert ("site-packages", "sokka_pg") not in tops


def test_a_journal_is_read_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lines = Lines(path)
    assert lines.read() == []
    Journal(path).note("held", token=7)
    with path.open("ab") as file:
        file.write(b'{"what": "ha')
    assert lines.read() == [{"what": "held", "token": 7}]
    assert lines.read() == []


def row(name: str, worker: str, token: int) -> dict[str, object]:
    return {
        "task_id": f"id-{name}", "name": name, "worker": worker, "token": token, "sha256": name,
        "lines": 2, "functions": 1, "classes": 0, "nodes": 9, "error": None,
    }


def sound() -> Evidence:
    """Two files; w3 did what w1 died over and what w2 slept over."""
    rows = [row("a", "w3", 11), row("b", "w3", 12)]
    tasks = [
        {"task_id": r["task_id"], "name": r["name"], "status": "terminated",
         "pid": "w3", "token": r["token"]} for r in rows
    ]  # fmt: skip
    return Evidence(
        names=["a", "b"], rows=rows, tasks=tasks, lost=[],
        refusals=[{"task_id": "id-b", "stale_token": 2}], plain=[dict(r) for r in rows],
        killed="w1", killed_with={"id-a": 1}, frozen="w2", frozen_with={"id-b": 2},
        unfenced_refused=True,
    )


def test_sound_evidence_passes_every_check() -> None:
    assert judge(sound()).ok


def _with_row(evidence: Evidence, **changes: object) -> Evidence:
    return replace(evidence, rows=[evidence.rows[0], {**evidence.rows[1], **changes}])


@pytest.mark.parametrize(
    ("spoil", "failing"),
    [
        (lambda e: replace(e, names=[*e.names, "c"]),
         {"each file has one task, ended in success", "each file has exactly one row"}),
        (lambda e: replace(e, rows=[*e.rows, e.rows[0]]),
         {"each file has exactly one row", "all counts are those of one plain process"}),
        (lambda e: _with_row(e, token=13), {"each row has the token that ended its task"}),
        (lambda e: _with_row(e, token=2),
         {"each row has the token that ended its task",
          "the stale writes of the frozen one were refused"}),
        (lambda e: _with_row(e, lines=3), {"all counts are those of one plain process"}),
        (lambda e: replace(e, killed_with={}),
         {"what the killed worker held was done by others"}),
        (lambda e: replace(e, killed_with={"id-a": 11}),
         {"what the killed worker held was done by others"}),
        (lambda e: replace(e, refusals=[]),
         {"the stale writes of the frozen one were refused"}),
        (lambda e: replace(e, unfenced_refused=False),
         {"a write without a lease was refused"}),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_fails_its_check(
    spoil: Callable[[Evidence], Evidence], failing: set[str]
) -> None:
    findings = judge(spoil(sound()))
    assert {check.check for check in findings.checks if not check.ok} == failing
    assert not findings.ok


def test_a_wait_in_which_nothing_happens_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    patience = Patience("Godot")
    patience.tick(1)
    later = time.monotonic() + 61.0
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(DemoFailed, match="waiting for Godot"):
        patience.tick(1)


def test_the_live_display_fits_80_columns() -> None:
    stream = io.StringIO()
    screen = Console(file=stream, force_terminal=True, width=80, color_system=None)
    hands = [HandView("w1", 4_194_304, "killed (kill -9)", 12_345, 12)]
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        teller = LiveTeller(live)
        teller.said("w1 killed")
        teller.show(Snapshot("files in one plain process", 12_345, 123_456, hands))
        live.refresh()
    frame = stream.getvalue()
    assert "12,345 of 123,456 files in one plain process" in frame
    assert "killed (kill -9)" in frame


def test_where_there_is_no_terminal_progress_is_plain_lines() -> None:
    stream = io.StringIO()
    teller = LineTeller(Console(file=stream, width=200))
    teller.said("four\x1b[31m workers")
    teller.show(Snapshot("tasks", 3, 24))
    teller.show(Snapshot("tasks", 4, 24))
    lines = [line[9:] for line in stream.getvalue().splitlines()]
    assert lines == ["four\\x1b[31m workers", "3 of 24 tasks"]
