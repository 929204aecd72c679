"""Each part of the bench runs, and what it says has the right shape. No time is asserted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from sokka_pg import embedded
from sokka_pg.bench.figures import Figure
from sokka_pg.errors import UsageError
from tests.bench import __main__ as bench
from tests.bench import host as hosts
from tests.bench import html, page, tables
from tests.bench.book import Book, Measure
from tests.bench.parts import PARTS
from tests.bench.peers import __main__ as peers
from tests.bench.peers import measures, targets
from tests.bench.peers.driving import Driver, Mark
from tests.bench.peers.environments import RECIPES
from tests.bench.peers.tables import of_peers
from tests.bench.plan import SMOKE
from tests.faults import programs


@pytest.fixture(scope="module")
def host() -> Iterator[hosts.Host]:
    """A server that need not be durable: nothing here is a figure."""
    try:
        binaries = embedded.find_binaries()
    except UsageError as missing:
        pytest.skip(str(missing))
    if not (binaries.bin_dir / "pgbench").exists():
        pytest.skip(f"PostgreSQL {binaries.version} from {binaries.source} has no pgbench")
    with hosts.running(str(binaries.bin_dir), tcp=True, fsync="off") as running:
        yield running


def results(book: Book) -> dict[str, Any]:
    """As they stand in the JSON."""
    found = {
        "environment": book.environment, "figures": [asdict(f) for f in book.figures],
        "ratios": [asdict(r) for r in book.ratios], "curves": [asdict(c) for c in book.curves],
        "left_out": book.left_out, "failed": book.failed, "seconds": book.seconds,
    }  # fmt: skip
    answer: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return answer


# More than ten seconds each, most of it for processes to start.
SLOW = {"drain", "idle", "notify", "pinned", "history", "delayed"}


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=[pytest.mark.long] if part in SLOW else []) for part in PARTS],
)
def test_a_part_runs_and_gives_figures_with_units(host: hosts.Host, part: str) -> None:
    book = Book(host.environment(asdict(SMOKE)), SMOKE.rounds)
    PARTS[part](host, SMOKE, book)
    book.close()
    found = results(book)
    if part == "pooler" and programs.find("pgbouncer") is None:
        assert part in found["left_out"]
        return
    assert found["left_out"] == {}
    assert found["figures"]
    for figure in found["figures"]:
        assert figure["part"] == part
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert len(figure["values"]) == figure["runs"] >= 1
    assert len({figure["name"] for figure in found["figures"]}) == len(found["figures"])
    assert all(ratio["part"] == part for ratio in found["ratios"])
    assert "<table>" in html.of_bench(found)
    assert part.replace(" ", "-") in page.blocks_of_bench(found, "performance")


def test_the_environment_says_machine_server_and_settings(host: hosts.Host) -> None:
    found = host.environment(asdict(SMOKE))
    for name in ("cpu", "cpus", "memory_gib", "kernel", "libraries", "commit", "settings", "plan"):
        assert found[name], name
    assert found["settings"]["synchronous_commit"] == "on"
    assert 0 < found["a_page_us"]["at_once"] < 1000
    assert found["a_page_us"]["after_a_second"] > 0
    assert any("when nobody touched it" in row[1] for row in tables.environment({
        "environment": found,
    }))  # fmt: skip
    assert found["server"]["server_version"].startswith(str(host.server.version))


def test_a_figure_needs_a_durable_server() -> None:
    for name in ("fsync", "synchronous_commit", "full_page_writes"):
        assert hosts.SETTINGS[name] == "on"


def test_measures_take_turns_and_ratios_are_of_the_same_round() -> None:
    book, order = Book({}, rounds=3), []
    values = {"a": iter((2.0, 8.0, 30.0)), "b": iter((1.0, 2.0, 10.0))}

    def measure(name: str) -> Measure:
        def run() -> float:
            order.append(name)
            return next(values[name])

        return Measure(name, run)

    book.compare("part", [measure("a"), measure("b")])
    book.ratio("part", "a / b", "a", "b", least=3.5)
    book.close()
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert book.figures[0] == Figure.of("part", "a", [2.0, 8.0, 30.0])
    assert (book.ratios[0].value, book.ratios[0].wanted, book.ratios[0].reached) == (
        3.0, ">= 3.5", False,
    )  # fmt: skip


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="nonsense"):
        bench.chosen(bench.options(["--parts", "nonsense"]))


def test_the_page_is_filled_between_its_markers_alone() -> None:
    text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n<!-- peers:x -->\n<!-- /peers:x -->\n"
    once = page.filled(text, "bench", {"x": "new"})
    assert "new" in once
    assert "old" not in once
    assert once.endswith("<!-- peers:x -->\n<!-- /peers:x -->\n")
    assert page.filled(once, "bench", {"x": "new"}) == once


def test_runs_of_both_plans_come_to_the_page(host: hosts.Host, tmp_path: Path) -> None:
    book = Book(host.environment(asdict(SMOKE)), SMOKE.rounds)
    PARTS["weight"](host, SMOKE, book)
    book.close()
    for folder in (tmp_path, tmp_path / "long"):
        folder.mkdir(exist_ok=True)
        (folder / "bench.json").write_text(json.dumps(results(book), default=str))
    text = tmp_path / "page.md"
    names = ("bench:weight", "long:weight", "bench:targets", "long:targets")
    text.write_text("".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in names))
    page.main(["--from", str(tmp_path), "--page", str(text)])
    assert text.read_text().count("bytes") >= 2
    assert (tmp_path / "page" / "long" / "bench.json").exists()
    # a run of some parts says nothing of all
    assert "<!-- bench:targets -->\n<!-- /bench:targets -->" in text.read_text()
    assert "<!-- long:targets -->\n<!-- /long:targets -->" not in text.read_text()


def test_every_part_has_its_place_on_the_page() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    places = set(re.findall(r"<!-- bench:([\w-]+) -->", text))
    assert {part.replace(" ", "-") for part in PARTS} <= places


def test_every_peer_has_an_adapter_that_names_its_source() -> None:
    for recipe in RECIPES:
        text = (Path(peers.__file__).parent / "adapters" / recipe.adapter).read_text()
        assert "setting" in text
        assert re.search(r"https://|docs/performance", text), recipe.adapter


@pytest.fixture(scope="module")
def driver(host: hosts.Host, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    ours = next(recipe for recipe in RECIPES if recipe.name == "sokka")
    made = Driver(host, ours, tmp_path_factory.mktemp("cache"))
    made.prepare()
    return made


@pytest.mark.long
def test_our_own_adapter_does_what_is_asked_of_peers(driver: Driver) -> None:
    found = peers.Results()
    todo = peers.schedule(peers.options(["--rounds", "1", "--latency-rounds", "1"]))
    for measures_of_a_round in todo:
        peers.measure([driver], measures_of_a_round, measures.SMOKE, found)
    assert found.failed == {}
    values = found.values["sokka_pg"]
    assert {peers.ONE, peers.EIGHT, peers.BULK, peers.DRAIN_1, peers.DRAIN_2} <= set(values)
    assert {"pickup idle, p50", "pickup at half load, p99"} <= set(values)
    assert found.pinned["sokka_pg"][0]["done"] > 0
    table = of_peers({
        "peers": {"sokka_pg": driver.about}, "values": found.values, "failed": {"x": "no y"},
    })  # fmt: skip
    assert "drain, 2 processes" in table
    assert "x: not run" in table


def test_peers_are_judged_by_the_best_of_them() -> None:
    about = {
        "sokka_pg": {"runtime": "Python 3.11", "history": "all"},
        "slow": {"runtime": "Python 3.11", "history": "rows"},
        "fast": {"runtime": "Node 22", "history": "none kept"},
    }
    log = "log, enqueue in bulk to end, bytes per task"
    values = {
        "sokka_pg": {"drain, 1 process": [30.0, 10.0, 20.0], log: [9.0], "pickup idle, p50": [3.0]},
        "slow": {"drain, 1 process": [10.0], log: [10.0], "pickup idle, p50": [2.0]},
        "fast": {"drain, 1 process": [40.0], log: [1.0]},
    }
    found = targets.of_peers({"peers": about, "values": values})
    assert [(each.value, each.reached) for each in found] == [
        (2.0, True), (0.5, False), (1.5, False), (0.9, True),
    ]  # fmt: skip
    assert "fast" in found[1].name


def test_fifths_are_read_between_marks() -> None:
    marks = [Mark(0, "h", 0, 0), Mark(0, "h", 50, 10_000_000), Mark(1, "h", 50, 20_000_000)]
    done, fifths = measures._by_fifths(marks)
    assert done == 100
    assert fifths == pytest.approx([5_000.0] * 5)


def test_targets_say_reached_or_missed() -> None:
    ratio = {"part": "p", "name": "x", "value": 0.5, "wanted": ">= 0.4", "reached": True}
    head, rows = tables.targets({"ratios": [ratio, {**ratio, "wanted": ""}]})
    assert len(head) == len(rows[0])
    assert rows == [["x", "0.5", "at least 0.4", "reached"]]
