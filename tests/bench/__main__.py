"""``python -m tests.bench``: run the parts that were asked for, write JSON and a page."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.bench import host as hosts
from tests.bench import html
from tests.bench.book import Book, say
from tests.bench.parts import PARTS
from tests.bench.plan import PLANS, Plan

OUTPUT = hosts.ROOT / ".bench"


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--parts", help=f"some of: {', '.join(PARTS)}; default: all")
    parser.add_argument("--plan", choices=PLANS, default="standard", help="the sizes (plan.py)")
    parser.add_argument("--rounds", type=int, help="runs of which the median counts")
    parser.add_argument("--tasks", type=int, help="tasks of a drain")
    parser.add_argument("--seconds", type=int, help="seconds of an open-ended run")
    parser.add_argument("--large", type=int, help="tasks under a pinned snapshot, and delayed")
    parser.add_argument("--finished", type=int, help="finished tasks to work beside")
    parser.add_argument("--pg", help="major version of the server, or its folder of programs")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the results")
    return parser.parse_args(arguments)


def chosen(given: argparse.Namespace) -> tuple[Plan, list[str]]:
    names = ("rounds", "tasks", "seconds", "large", "finished")
    changes = {name: value for name in names if (value := getattr(given, name)) is not None}
    parts = [part.strip() for part in given.parts.split(",")] if given.parts else list(PARTS)
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        sys.exit(f"--parts: {', '.join(unknown)}: not one of {', '.join(PARTS)}")
    return replace(PLANS[given.plan], **changes), parts


def measure(plan: Plan, parts: Sequence[str], major: str | None) -> Book:
    """Run the parts on a server of their own."""
    with hosts.running(major) as host:
        book = Book(host.environment(asdict(plan)), plan.rounds)
        for part in parts:
            begun = time.monotonic()
            try:
                PARTS[part](host, plan, book)
            except Exception as error:  # the other parts are worth having
                traceback.print_exc()
                book.failed[part] = f"{type(error).__name__}: {error}"
            book.seconds[part] = round(time.monotonic() - begun, 1)
        book.close()
        return book


def write(book: Book, folder: Path, name: str) -> Path:
    """The results as JSON, and a page with plots where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    ignored = folder / ".gitignore"
    if not ignored.exists():
        ignored.write_text("*\n")
    found = {
        "environment": book.environment, "figures": [asdict(each) for each in book.figures],
        "ratios": [asdict(each) for each in book.ratios],
        "curves": [asdict(each) for each in book.curves],
        "left_out": book.left_out, "failed": book.failed, "seconds": book.seconds,
    }  # fmt: skip
    file = folder / f"{name}.json"
    file.write_text(json.dumps(found, indent=1, default=str) + "\n")
    (folder / f"{name}.html").write_text(html.of_bench(found), encoding="utf-8")
    return file


def end_in_order() -> None:
    """SIGTERM ends a run as Ctrl-C does, so that its server goes with it."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def main(arguments: Sequence[str] | None = None) -> None:
    given = options(arguments)
    plan, parts = chosen(given)
    end_in_order()
    book = measure(plan, parts, given.pg)
    file = write(book, given.output, "bench")
    say(f"written: {file}, in {sum(book.seconds.values()):.0f} s")
    for ratio in book.ratios:
        verdict = ("reached" if ratio.reached else "missed") if ratio.wanted else ""
        print(f"{ratio.part:14} {ratio.name:80} {ratio.value:8.3f} {ratio.wanted:8} {verdict}")
    if book.failed:
        sys.exit(f"failed: {', '.join(book.failed)}")


if __name__ == "__main__":
    main()
