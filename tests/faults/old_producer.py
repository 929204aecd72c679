"""A program that enqueues one task after another, recorded, by whatever release it finds."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from sokka_pg.errors import SokkaError
from sokka_pg.store import PgTaskStore
from tests.faults.chaos import recorder

if __name__ == "__main__":
    recorder.install_from_environment()
    with PgTaskStore(os.environ["SOKKA_DATABASE_URL"]) as store:
        while True:
            with suppress(SokkaError):
                store.create_task("t", kind="quick")
            time.sleep(0.01)
