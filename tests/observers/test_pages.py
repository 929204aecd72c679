"""The page and the dashboard say what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sokka_pg.events import TaskEvent
from sokka_pg.observers import families as f
from sokka_pg.observers.families import Sort
from tests.docs.blocks import ROOT
from tests.observers.samples import EVENTS, concrete

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))
OF_PROMETHEUS = {"le"}
_METRIC = re.compile(
    r"^\| `(sokka_\w+)` \| (\w+) \| ([\w, ]*) \| ([\w -]+) \| [^|]+ \|$", re.MULTILINE
)
_EVENT = re.compile(r"^\| `([A-Z]\w+)` \| ([\w, ]*)\| [^|]+ \|$", re.MULTILINE)
SERIES = {
    name: family
    for family in f.ALL
    for name in (
        [f"{family.name}_{part}" for part in ("bucket", "sum", "count")]
        if family.sort is Sort.HISTOGRAM else [family.name]
    )
}


def test_the_page_has_every_metric_with_its_type_labels_and_unit() -> None:
    listed = _METRIC.findall(PAGE)
    assert len(listed) == len(f.ALL), "a row is missing, or is written otherwise"
    assert listed == [
        (family.name, str(family.sort), ", ".join(family.labels), family.unit) for family in f.ALL
    ]


def test_the_page_has_every_event_with_its_fields() -> None:
    common = {field.name for field in dataclasses.fields(TaskEvent)}
    rows = {name: re.findall(r"\w+", fields) for name, fields in _EVENT.findall(PAGE)}
    assert rows == {
        cls.__name__: [
            field.name for field in dataclasses.fields(cls)
            if not (issubclass(cls, TaskEvent) and field.name in common)
        ]
        for cls in concrete()
    }


def test_the_samples_have_every_event() -> None:
    assert {type(event) for event in EVENTS} == concrete()


@pytest.mark.parametrize("family", f.ALL, ids=lambda family: family.name)
def test_names_and_units_go_together(family: f.Family) -> None:
    assert (family.sort is Sort.COUNTER) == family.name.endswith("_total")
    assert (family.unit == "seconds") == family.name.endswith("_seconds")
    assert bool(family.buckets) == (family.sort is Sort.HISTOGRAM)
    assert list(family.buckets) == sorted(set(family.buckets))


def test_every_metric_that_the_page_names_is_there() -> None:
    known = SERIES.keys() | {family.name for family in f.ALL} | {"sokka_worker", "sokka_pg"}
    assert set(re.findall(r"\bsokka_\w+", PAGE)) <= known


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def test_the_dashboard_uses_only_metrics_that_exist() -> None:
    used = {name for expression in expressions() for name in re.findall(r"\bsokka_\w+", expression)}
    assert used <= SERIES.keys()
    assert len(used) > 30


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_an_expression_of_the_dashboard_uses_only_labels_that_exist(expression: str) -> None:
    names = re.findall(r"\bsokka_\w+", expression)
    labels = {"job", *(label for name in names for label in SERIES[name].labels)}
    if any(SERIES[name] in f.OF_JOBS for name in names):
        labels |= {"exported_job"}
    if any(name.endswith("_bucket") for name in names):
        labels |= OF_PROMETHEUS
    used = {
        label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    used |= set(re.findall(r"[{,](\w+)=", expression))
    assert used <= labels
    assert expression.count("(") == expression.count(")")
    # what is counted is shown as a rate; what is the same everywhere is never added up
    for name in names:
        family = SERIES[name]
        if family.sort is not Sort.GAUGE:
            assert re.search(rf"(rate|increase)\({name}\{{", expression)
        if family in f.OF_QUEUE:
            assert re.search(rf"(max|min)( by \([^)]*\))? \({name}\{{", expression) or re.search(
                rf"(max|min)\({name}\{{", expression
            )


def test_the_panels_of_the_dashboard_fill_the_grid_without_overlaps() -> None:
    taken: set[tuple[int, int]] = set()
    ids: list[int] = []
    for panel in DASHBOARD["panels"]:
        ids.append(panel["id"])
        at: dict[str, Any] = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len(ids) == len(set(ids))
