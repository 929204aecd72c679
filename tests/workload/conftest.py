from __future__ import annotations

# A worker in the test's own loop, an observer, a look at a task's row.
from tests.faults.conftest import app, row, seen, working

__all__ = ["app", "row", "seen", "working"]
