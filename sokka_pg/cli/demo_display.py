"""How a running demo looks: live on a terminal, plain lines elsewhere; on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sokka_pg.cli.output import console, printable
from sokka_pg.demo.telling import Snapshot, Teller

LINE_EVERY_S = 2.0
BAR_WIDTH = 30


@contextmanager
def displayed() -> Iterator[Teller]:
    """A teller that suits standard error, for the block."""
    screen = console(stderr=True)
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield LineTeller(screen)
        return
    with Live(console=screen, refresh_per_second=8, transient=True) as live:
        yield LiveTeller(live)


class LineTeller:
    """One line for each thing that happened, and one now and then for progress."""

    def __init__(self, screen: Console) -> None:
        self._screen, self._began = screen, time.monotonic()
        self._shown: tuple[str, int] = ("", 0)
        self._due = 0.0

    def said(self, text: str) -> None:
        self._screen.print(_line(self._began, text))

    def show(self, snapshot: Snapshot) -> None:
        now, state = time.monotonic(), (snapshot.what, snapshot.done)
        if now >= self._due and state != self._shown:
            self._due, self._shown = now + LINE_EVERY_S, state
            self.said(f"{snapshot.done:,} of {snapshot.total:,} {snapshot.what}")


class LiveTeller:
    """What happened scrolls up; below it a bar and the workers stand."""

    def __init__(self, live: Live) -> None:
        self._live, self._began = live, time.monotonic()

    def said(self, text: str) -> None:
        self._live.console.print(_line(self._began, text))

    def show(self, snapshot: Snapshot) -> None:
        self._live.update(Group(*_parts(snapshot)))


def _line(began: float, text: str) -> str:
    return printable(f"{time.monotonic() - began:5.1f} s  {text}")


def _parts(snapshot: Snapshot) -> Iterator[Text | Table]:
    yield Text()
    row = Table.grid(padding=(0, 2))
    row.add_row(
        ProgressBar(total=snapshot.total, completed=snapshot.done, width=BAR_WIDTH),
        Text(f"{snapshot.done:,} of {snapshot.total:,} {snapshot.what}"),
    )
    yield row
    if snapshot.hands:
        yield _workers(snapshot)


def _workers(snapshot: Snapshot) -> Table:
    grid = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading, width in (("worker", 6), ("process", 7), ("state", 16)):
        grid.add_column(heading, min_width=width)
    for heading in ("rows", "leases"):
        grid.add_column(heading, justify="right")
    for hand in snapshot.hands:
        calm = hand.state.endswith("working")
        grid.add_row(
            hand.name, str(hand.process), Text(hand.state, "" if calm else "bold red"),
            f"{hand.rows:,}", str(hand.leases),
        )
    return grid
