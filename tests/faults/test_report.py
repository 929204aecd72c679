"""The page of a fault run: what it shows, and that it shows nothing but what it was given."""

from __future__ import annotations

import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.faults.chaos.judging.rules import Fault
from tests.faults.chaos.judging.verdict import Verdict
from tests.faults.chaos.report import write_report
from tests.faults.chaos.report.timeline import life_of, most_contested
from tests.faults.chaos.words import FAIL, INFO, OK, Act, Bite, Call, Change, Effect, Injection, Run

TASK = "0192f1c4-0000-7000-8000-000000000001"
HOSTILE = '<img src=x onerror=alert(1)>"\'&</style><script>x</script>\x00\u202e'
SECOND = 1_000_000_000


class Sample:
    """An act, told in seconds since its begin. Its server's clock is ahead of the host's."""

    def __init__(self, name: str = "storm", begin: float = 1000.0, seconds: float = 12.0) -> None:
        self.begin = int(begin * SECOND)
        self.act = Act(
            name, 18, 1.0, self.begin, self.begin + int(seconds * SECOND),
            offset_us=1_700_000_000_000_000 - self.begin // 1000,
        )
        self._rows: dict[str, dict[str, Any]] = {}

    def us(self, at: float) -> int:
        return self.ns(at) // 1000 + self.act.offset_us

    def ns(self, at: float) -> int:
        return self.begin + int(at * SECOND)

    def change(self, at: float, function: str, task: str = TASK, **new: Any) -> int:
        """A change of the row in ``tasks``; ``status`` terminated or failed ends it."""
        old = self._rows.get(task)
        row = {**(old or {"id": task, "token": None, "pid": None, "until": None, "losses": 0,
                          "kind": "pay", "topic": "a", "ver": 0}), **new}  # fmt: skip
        row["ver"] += 1
        final = row["status"] in ("terminated", "failed")
        self._add(at, function, "tasks", old, None if final else row)
        if final:
            self._add(at, function, "finished_tasks", None, row)
        self._rows[task] = row
        return len(self.act.changes)

    def _add(self, at: float, function: str, source: str, old: Any, new: Any) -> None:
        pos = len(self.act.changes) + 1
        self.act.changes.append(
            Change(pos, self.us(at), "7", 9, "0/1", function, source, old, new)
        )

    def grant(self, at: float, pid: str, token: int, task: str = TASK) -> None:
        self.change(at, "settle_and_reserve", task, status="running", pid=pid, token=token,
                    until=self.us(at + 1))  # fmt: skip

    def beat(self, at: float) -> None:
        self.change(at, "extend_leases", until=self.us(at + 1))

    def lose(self, at: float) -> None:
        self.change(at, "sweep", status="starting", pid=None, token=None, until=None,
                    losses=self._rows[TASK]["losses"] + 1)  # fmt: skip

    def call(self, at: float, pid: str, function: str, token: int, sqlstate: str = "",
             outcome: str = FAIL, task: str = TASK) -> None:  # fmt: skip
        self.act.calls.append(
            Call(pid, len(self.act.calls), function, {"task_id": task, "token": str(token)},
                 self.ns(at), self.ns(at + 0.01), outcome, sqlstate=sqlstate, pid=pid)
        )  # fmt: skip

    def trouble(self, fault: str, at: float, until: float, about: str = "") -> None:
        self.act.injections.append(Injection(fault, self.ns(at), self.ns(until), about))


def contested() -> Sample:
    """A paused owner comes back twice, and is refused; a third worker ends the task."""
    sample = Sample()
    sample.change(0.1, "create_task", status="starting")
    sample.grant(0.4, "w1.1", 501)
    for at in (0.6, 0.8, 1.0):
        sample.beat(at)
    sample.change(1.05, "save_checkpoint", checkpoint_seq=1)
    sample.trouble("F2", 1.1, 4.0, "w1.1")
    sample.lose(2.15)
    sample.grant(2.3, "w2.3", 502)
    sample.beat(2.5)
    sample.trouble("F1", 2.9, 3.4, "w2.3")
    sample.lose(3.6)
    sample.grant(3.7, "w3.1", 503)
    for n in range(9):
        sample.beat(3.9 + n / 5)
    sample.call(4.02, "w1.1", "extend_lease", 501, "SK003")
    sample.call(4.1, "w1.1", "save_checkpoint", 501, "SK003")
    sample.call(4.2, "w1.1", "terminate_task", 501, "SK003")
    sample.call(4.4, "w3.1", "report_progress", 503, outcome=INFO)
    sample.change(5.0, "save_checkpoint", checkpoint_seq=2)
    sample.act.effects += [
        Effect("start", TASK, 501, 1, "w1.1", sample.ns(0.45), "p"),
        Effect("refused", TASK, 501, 1, "w1.1", sample.ns(4.3), "p"),
        Effect("fenced", TASK, 503, 3, "w3.1", sample.ns(5.4), "p"),
    ]
    sample.change(5.6, "settle_and_reserve", status="terminated")
    _others(sample)
    sample.act.bites = [Bite("F1", 3, "3 leases taken back from 1 killed worker"),
                        Bite("F2", 4, "1 lease lost during 1 pause, 3 writes refused"),
                        Bite("F4", 0, "no call was cut")]  # fmt: skip
    sample.act.not_run = {"F7": "network namespaces need root"}
    return sample


def _others(sample: Sample) -> None:
    dice = random.Random(3)
    for n in range(400):
        at = dice.uniform(0.5, 11) if n % 3 else dice.uniform(6, 8)
        name = f"other-{n}"
        sample.change(at, "create_task", name, status="starting")
        sample.grant(at + 0.01, "w4.1", 1000 + n, name)
        sample.change(at + 0.2, "settle_and_reserve", name, status="terminated")
    for n in range(12):
        sample.trouble("F3", n + 0.5, n + 0.55, "w4.1")
    sample.trouble("F4", 7, 8.2)


def broken() -> tuple[Run, Verdict]:
    """An old owner's terminate was let through."""
    sample = contested()
    sample.act.changes = [c for c in sample.act.changes if c.id != TASK or c.at < sample.us(5.5)]
    pos = sample.change(5.5, "terminate_task", status="terminated")
    sample.call(5.5, "w1.1", "terminate_task", 501, outcome=OK)
    message = "terminate_task by token 501, but 503 is current"
    said = Verdict(
        "FAIL", [Fault("I3", "storm", TASK, message, pos)],
        counts={"attempted": 401, "lost": 1}, story=["4.2 w1.1 terminate_task(token=501): ok"],
    )  # fmt: skip
    return run_of(sample.act), said


def run_of(*acts: Act) -> Run:
    return Run(
        42, 60.0, {}, {"sokka_pg": "0.1.0", "PostgreSQL": "18.1", "Python": "3.13"}, list(acts),
        {"disk": "a small file system needs root"}, "make chaos SEED=42 DURATION=60s",
    )


def page(run: Run, said: Verdict, tmp_path: Path) -> str:
    write_report(run, said, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


COUNTS = {
    "attempted": 20431, "acknowledged": 20102, "started": 23777, "ended": 20377, "lost": 0,
    "unexpected": 0, "recovered": 71, "duplicated_starts": 3400, "overlapping_effects": 38,
    "refused_stale_writes": 212, "infos": 944,
}  # fmt: skip


def test_the_page_says_at_the_top_what_came_of_the_run(tmp_path: Path) -> None:
    text = page(run_of(contested().act), Verdict("pass", counts=COUNTS), tmp_path)
    top = text[text.index("<body>") :][:900]
    for word in ("pass", "42", "18", "storm", "make chaos SEED=42 DURATION=60s"):
        assert word in top
    assert "20,431" in text
    assert "What was broken" not in text


def test_a_broken_rule_is_shown_with_its_task_and_its_instant(tmp_path: Path) -> None:
    text = page(*broken(), tmp_path)
    assert "FAIL" in text[:4000] or "FAIL" in text[text.index("<body>") :][:200]
    assert "terminate_task by token 501, but 503 is current" in text
    assert "rule broken here" in text
    assert re.search(r'<tr class="wrong">.*w1.1</td><td>terminate_task</td><td>1st', text)
    assert "The task that shows it" in text
    assert '<div class="tile bad"><dd>1</dd><dt>lost</dt>' in text


def test_a_run_that_does_not_count_says_why(tmp_path: Path) -> None:
    text = page(run_of(contested().act), Verdict("unknown", why=["F4 had no effect"]), tmp_path)
    assert "F4 had no effect" in text
    assert re.search(r'<tr class="none">.*F4</b> server crash', text)
    assert re.search(r'<tr class="not">.*F7</b> network partition.*need root', text)
    assert "a small file system needs root" in text


def test_leases_writes_and_refusals_of_a_task_are_told_apart() -> None:
    sample = contested()
    assert most_contested(sample.act) == TASK
    life = life_of(sample.act, TASK)
    assert [(lease.token, lease.pid, lease.expired) for lease in life.leases] == [
        (501, "w1.1", True), (502, "w2.3", True), (503, "w3.1", False),
    ]  # fmt: skip
    assert [life.ordinal(token) for token in (501, 502, 503, 9)] == [
        "1st", "2nd", "3rd", "unknown",
    ]
    refused = [(mark.pid, mark.token, mark.why) for mark in life.marks if mark.kind == "refused"]
    assert refused == [("w1.1", 501, "SK003 another owner")] * 3 + [
        ("w1.1", 501, "SK011 stale fence")
    ]
    assert [mark.what for mark in life.marks if mark.kind == "write"] == ["save_checkpoint"] * 2
    assert [mark.kind for mark in life.marks].count("beat") == 13
    assert [stay.status for stay in life.stays] == [
        "starting", "running", "starting", "running", "starting", "running", "terminated",
    ]  # fmt: skip
    assert [each.fault for each in life.troubles] == ["F2", "F1"]


def test_a_member_that_a_batch_refuses_is_a_refused_write() -> None:
    sample = contested()
    sample.act.calls.append(
        Call("w1.1", 99, "extend_leases", {"task_ids": f"{{{TASK},b}}", "tokens": "{501,7}"},
             sample.ns(4.5), sample.ns(4.6), OK, pid="w1.1",
             rows=[{"task_id": TASK, "verdict": "SK005"}, {"task_id": "b", "verdict": "ok"}])
    )  # fmt: skip
    last = [mark for mark in life_of(sample.act, TASK).marks if mark.kind == "refused"][-1]
    assert (last.token, last.why) == (501, "SK005 stale token")


def test_a_run_without_acts_has_a_page(tmp_path: Path) -> None:
    text = page(run_of(), Verdict("unknown", why=["nothing was run"]), tmp_path)
    assert "nothing was run" in text


class Seen(HTMLParser):
    """Which tags and attributes a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("where", ["names", "texts"])
def test_hostile_text_stays_text(tmp_path: Path, where: str) -> None:
    sample = contested()
    if where == "names":
        sample.act.name = sample.act.calls[0].pid = sample.act.calls[1].function = HOSTILE
        sample.act.injections[0].about = sample.act.injections[0].fault = HOSTILE
        for lease in sample.act.changes:
            if lease.new is not None:
                lease.new.update(pid=HOSTILE, kind=HOSTILE, topic=HOSTILE)  # type: ignore[attr-defined]
        task = HOSTILE
    else:
        sample.act.bites[0].evidence = sample.act.not_run["F7"] = HOSTILE
        task = TASK
    run = run_of(sample.act)
    run.command, run.versions, run.not_run = HOSTILE, {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE}
    said = Verdict("FAIL", [Fault(HOSTILE, sample.act.name, task, HOSTILE, 3)], [HOSTILE],
                   {HOSTILE: 3}, story=[HOSTILE])  # fmt: skip
    text = page(run, said, tmp_path)
    seen = Seen()
    seen.feed(text)
    assert seen.open == []
    assert not seen.tags & {"script", "img", "link", "iframe", "object"}
    assert not [name for name in seen.attributes if name.startswith("on") or name == "src"]
    assert "&lt;script&gt;" in text
    assert "\x00" not in text


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    text = page(*broken(), tmp_path)
    assert not re.search(r"https?://|url\(|@import|src=|href=", text)
