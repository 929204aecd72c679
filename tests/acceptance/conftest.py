"""Demos, one after the other or side by side, that never outlive their test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.demos import Demo


@pytest.fixture
def run_demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts ``sokka demo`` with these arguments."""
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Demo(folder, *arguments))
        return started[-1]

    yield start
    for demo in started:
        demo.end()
