"""Files of JSON lines: what the children tell, whatever becomes of them.

A line is appended by one write, so that a process killed at any moment leaves
whole lines; the reader takes what is new each time.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """The writing end, for one process with any number of threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, **facts}, default=str)
        os.write(self._file, line.encode() + b"\n")


class Lines:
    """The reading end: everything so far, in ``read``'s batches."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        """The whole lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
