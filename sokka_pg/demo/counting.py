"""One plain process that counts the same files, and how far it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sokka_pg.demo.journal import Lines
from sokka_pg.demo.sources import SourceFile
from sokka_pg.demo.telling import DemoFailed, Patience, Snapshot, Teller


@dataclass(frozen=True, slots=True)
class Plain:
    """What the plain process counted, by name of file, and how long it took."""

    rows: list[dict[str, Any]]
    seconds: float


def count_plainly(files: list[SourceFile], folder: Path, teller: Teller) -> Plain:
    """Run it and wait for it; it ends with this call, however that ends."""
    wanted, answers, log = folder / "files.json", folder / "plain.jsonl", folder / "plain.log"
    wanted.write_text(json.dumps([(file.name, file.path) for file in files]))
    lines, began = Lines(answers), time.monotonic()
    with wanted.open("rb") as given, answers.open("wb") as answer, log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sokka_pg.demo.plain"],
            stdin=given, stdout=answer, stderr=errors, env=dict(os.environ), process_group=0,
        )
    rows: list[dict[str, Any]] = []
    try:
        patience = Patience("the plain process")
        while True:
            ended = process.poll()
            rows += lines.read()
            teller.show(Snapshot("files in one plain process", len(rows), len(files)))
            if ended is not None:
                break
            patience.tick(len(rows))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
    if ended:
        said = log.read_text(errors="replace")[-600:].strip()
        raise DemoFailed(f"the plain process ended with exit code {ended}: {said}")
    return Plain(rows, time.monotonic() - began)
