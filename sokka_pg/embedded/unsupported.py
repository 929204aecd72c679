"""Windows has no flock, no signals and no accounts to step down to: said at the call."""

from __future__ import annotations

from typing import NoReturn

from sokka_pg.errors import UsageError


def refuse(*arguments: object, **options: object) -> NoReturn:
    """Raises ``UsageError`` with what to do instead."""
    raise UsageError(
        "the embedded server runs on Linux and macOS; on Windows use WSL, or name a database "
        "(--database-url, SOKKA_DATABASE_URL)"
    )


class Server:
    """Stands for the launcher's class so that the rest can be imported."""

    start = staticmethod(refuse)
    temporary = staticmethod(refuse)
