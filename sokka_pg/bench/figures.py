"""What a run of the bench says: figures, ratios, and where they come from."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psycopg
from psycopg.rows import TupleRow

_SETTINGS = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level",
    "shared_buffers", "max_wal_size", "autovacuum",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure: the median of its runs, the lowest and highest of them, and each in turn."""

    part: str
    name: str
    median: float
    low: float
    high: float
    unit: str
    runs: int
    values: tuple[float, ...] = ()

    @classmethod
    def of(cls, part: str, name: str, values: Sequence[float], unit: str = "tasks/s") -> Figure:
        middle = statistics.median(values)
        return cls(
            part, name, middle, min(values), max(values), unit, len(values), tuple(values)
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two measures of this one run against each other, and what is hoped for."""

    part: str
    name: str
    value: float
    wanted: str
    reached: bool


@dataclass(slots=True)
class Report:
    """All figures of a run."""

    environment: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)

    def figure(self, name: str) -> Figure | None:
        """The figure of this name, if its part was run."""
        return next((each for each in self.figures if each.name == name), None)


def at_least(part: str, name: str, value: float, least: float) -> Ratio:
    return Ratio(part, name, value, f">= {least:g}", value >= least)


def at_most(part: str, name: str, value: float, most: float) -> Ratio:
    return Ratio(part, name, value, f"<= {most:g}", value <= most)


def environment(connection: psycopg.Connection[TupleRow], plan: dict[str, Any]) -> dict[str, Any]:
    """Machine, versions, settings of the server, and what was asked for."""
    rows = connection.execute(
        "select name, current_setting(name) from unnest(%s::text[]) name", (list(_SETTINGS),)
    )
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "sokka_pg": _own_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "server": dict(rows.fetchall()),
        "connection": "unix socket" if connection.info.host.startswith("/")
        else "tcp",
        "plan": plan,
    }  # fmt: skip


def _own_version() -> str:
    try:
        return version("sokka-pg")
    except PackageNotFoundError:
        return "run from its sources"
