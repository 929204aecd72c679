"""The same counts in one plain process: no queue, no database, no worker.

Reads a JSON array of [name, path] from standard input and prints one JSON line
per file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from pathlib import Path

from sokka_pg.demo.measure import measure


def main() -> None:
    warnings.simplefilter("ignore")  # about invalid escapes in other people's files
    parent = os.getppid()
    for name, path in json.load(sys.stdin):
        if os.getppid() != parent:  # the demo is gone: nobody reads this
            return
        found = dataclasses.asdict(measure(Path(path)))
        print(json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main()
