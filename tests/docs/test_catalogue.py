"""What the docs name exists, and what exists to be used is in the docs."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import psycopg
import pytest
import typer

from sokka_pg import errors, workload
from sokka_pg.cli.main import app
from sokka_pg.doctor.examination import OF_THE_QUEUE, OF_THE_SERVER
from tests.docs.blocks import PAGES, ROOT
from tests.docs.surface import (
    VIEWS,
    arguments,
    columns,
    commands,
    error_classes,
    functions,
    public_functions,
    relations,
    words_of,
)

DOCS = ROOT / "docs"
_SIGNATURE = re.compile(r"^\| `(\w+)\(([^)]*)\)` \|", re.MULTILINE)


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def everything() -> str:
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def signatures() -> dict[str, list[tuple[str, bool]]]:
    """The functions of sql.md, with their arguments and whether each may be left out."""
    found = {}
    for name, inside in _SIGNATURE.findall(text("sql.md")):
        needed, _, optional = inside.partition("[")
        found[name] = [
            (word, may) for part, may in ((needed, False), (optional, True))
            for word in re.findall(r"\w+", part)
        ]  # fmt: skip
    return found


def test_sql_md_lists_every_public_function_with_its_arguments(conn: psycopg.Connection) -> None:
    expected = {name: arguments(conn, name) for name in public_functions(conn)}
    assert signatures() == expected


def test_sql_md_lists_every_view_with_its_columns(conn: psycopg.Connection) -> None:
    page = " ".join(text("sql.md").split())
    for view in VIEWS:
        listed = re.search(rf"`{view}`: (.*?)\. ", page)
        assert listed is not None, view
        words = re.findall(r"\w+", re.sub(r"\([^)]*\)", "", listed[1]))
        assert set(words) == columns(conn, view), view


def test_sql_md_lists_the_columns_of_each_result(conn: psycopg.Connection) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\w, ]+)", text("sql.md"), re.MULTILINE))
    for name in (
        "leased_task", "task_outcome", "lease_state", "verdict", "listed_task", "stream_state",
    ):  # fmt: skip
        assert set(re.findall(r"\w+", rows[name])) >= columns(conn, name), name


def test_every_object_that_a_page_names_is_there(conn: psycopg.Connection) -> None:
    known = functions(conn).keys() | relations(conn) | {"sokka_version"}
    for page in PAGES:
        for name in re.findall(r"\bsokka\.(\w+)", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name}: sokka.{name}"


def test_user_md_lists_every_error_with_its_sqlstate() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", text("user.md"), re.MULTILINE))
    expected = {name: cls.sqlstate or "none" for name, cls in error_classes().items()}
    assert rows == expected


def test_workload_md_names_every_word_of_the_scheduler() -> None:
    page = text("workload.md")
    named = set(re.findall(r"\w+", page))
    assert set(workload.__all__) - named == set()
    table = set(re.findall(r"`(\w+)(?=[`(])", page.partition("## Every name")[2]))
    for scheduler in (workload.WorkloadScheduler, workload.AsyncWorkloadScheduler):
        assert words_of(scheduler) - table == set(), scheduler
        shown = set(re.findall(r"\.(\w+)\(", page)) | {"scheduler_id"}
        assert words_of(scheduler) - shown == set(), scheduler
    for handle in (workload.WorkloadHandle, workload.StreamHandle, workload.FanOutHandle,
                   workload.ScatterGatherHandle):  # fmt: skip
        assert words_of(handle) - named == set(), handle


def test_workload_md_lists_every_field_of_what_is_submitted() -> None:
    page = text("workload.md")
    for word, heading in (
        (workload.TaskSubmission, "field of `TaskSubmission`"), (workload.Limits, "`Limits`"),
        (workload.FanOutRequest, "field of a request"),
    ):  # fmt: skip
        rows = page.partition(f"| {heading} |")[2].partition("\n\n")[0]
        first = re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
        listed = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
        assert listed == {field.name for field in fields(word)}, word


def test_sql_md_lists_every_sqlstate() -> None:
    listed = set(re.findall(r"^\| (\w{5}) \|", text("sql.md"), re.MULTILINE))
    assert listed == set(errors.BY_SQLSTATE)


def test_every_command_is_in_the_docs_and_every_one_there_exists() -> None:
    page = text("operator.md")
    listed = set(re.findall(r"^\| `(sokka [\w ]+)` \|", page, re.MULTILINE))
    assert listed == commands()
    groups = {" ".join(command.split()[:2]) for command in commands()}
    for named in re.findall(r"\bsokka ((?:[a-z]+ ?){1,2})", everything()):
        words = named.split()
        if f"sokka {words[0]}" in groups and len(words) > 1:
            known = {c for c in commands() if c.startswith(f"sokka {words[0]}")}
            alone = f"sokka {words[0]}" in commands()
            assert alone or f"sokka {words[0]} {words[1]}" in known, named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    known = {"--help"}

    def walk(command: object) -> None:
        for parameter in getattr(command, "params", ()):
            known.update(parameter.opts, parameter.secondary_opts)
        for child in getattr(command, "commands", {}).values():
            walk(child)

    walk(typer.main.get_command(app))
    for line in re.findall(r"\bsokka [^\n`]*", page.read_text(encoding="utf-8")):
        for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", line):
            assert option in known, f"{page.name}: {option} in {line!r}"


def test_operator_md_lists_every_check_of_the_doctor() -> None:
    known = {check.name for check in (*OF_THE_SERVER, *OF_THE_QUEUE)} | {"schema"}
    section = text("operator.md").partition("## What doctor says")[2]
    listed = re.findall(r"^\| ([a-z][a-z ]+) \|", section, re.MULTILINE)
    assert set(listed) - {"check"} == known


def test_operator_md_lists_every_setting_with_its_default(conn: psycopg.Connection) -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", text("operator.md"), re.MULTILINE))
    row = conn.execute(
        "select default_lease = %(default_lease)s::interval, retention = %(retention)s::interval,"
        " max_data_bytes = %(max_data_bytes)s::int, notify = %(notify)s::bool from sokka.settings",
        listed,
    ).fetchone()
    assert row == (True, True, True, True)
    assert set(listed) == columns(conn, "settings") - {"one_row"}
