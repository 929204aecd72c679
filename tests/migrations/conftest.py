"""Reading a schema's catalogue, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from sokka_pg import catalogue


@pytest.fixture
def objects() -> Callable[..., dict[str, str]]:
    """Reads all objects of a schema in a database, shown as those of ``sokka``."""

    def read(url: str, schema: str = "sokka") -> dict[str, str]:
        with psycopg.connect(url) as connection:
            return catalogue.read(connection, schema, called="sokka")

    return read
