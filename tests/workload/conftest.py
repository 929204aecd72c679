from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

# A worker in the test's own loop, an observer, a look at a task's row.
from tests.faults.conftest import app, row, seen, working
from tests.workload.faces import KINDS, Candidates, Face, Ground

__all__ = ["app", "candidates", "face", "faces", "ground", "row", "seen", "working"]


@pytest.fixture
def faces(db: str) -> Iterator[Callable[..., Face]]:
    """Makes schedulers, closed after the test."""
    with ExitStack() as stack:

        def make(kind: str = "sync", **options: Any) -> Face:
            found = Face(kind, db, **options)
            stack.callback(found.close)
            return found

        yield make


@pytest.fixture(params=KINDS)
def face(request: pytest.FixtureRequest, faces: Callable[..., Face]) -> Face:
    """A scheduler of each kind in turn."""
    return faces(request.param)


@pytest.fixture
def candidates() -> Iterator[Candidates]:
    found = Candidates()
    yield found
    found.open_all()


@pytest.fixture(params=["sync-local", "sync-workers", "async-local", "async-workers"])
def ground(
    request: pytest.FixtureRequest, db: str, candidates: Candidates
) -> Iterator[Ground]:
    """Each face with each kind of invoker; ``workers`` has a worker."""
    kind, by = request.param.split("-")
    found = Ground(Face(kind, db), by, db, candidates)
    if by == "workers":
        found.with_crew()
    yield found
    found.close()
