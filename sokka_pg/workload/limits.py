"""How much a scheduler takes, and what its snapshots keep to themselves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

from sokka_pg.calls import arguments
from sokka_pg.errors import BadArgument
from sokka_pg.model import Json
from sokka_pg.payload import DATA_LIMIT, SMALL_LIMIT, Encoded, encode
from sokka_pg.workload.words import checked_metadata

log = logging.getLogger("sokka_pg.workload")

REDACTED = "***"

Redact: TypeAlias = "Iterable[str] | Callable[[Mapping[str, str]], Mapping[str, str]]"
"""Keys whose values are hidden, or a function from metadata to what may be shown."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one scheduler, at most those of the installation. ``*_bytes`` are of
    JSON text; ``local_tasks`` is how many unfinished local tasks there may be."""

    payload_bytes: int = DATA_LIMIT
    result_bytes: int = DATA_LIMIT
    checkpoint_bytes: int = SMALL_LIMIT
    checkpoint_entries: int = 256
    progress_bytes: int = SMALL_LIMIT
    local_tasks: int = 10_000

    def __post_init__(self) -> None:
        for each in fields(self):
            arguments.integer(getattr(self, each.name), each.name, 1, arguments.MOST_INT)
        if self.progress_bytes > SMALL_LIMIT:
            raise BadArgument.of("progress_bytes", f"must be at most {SMALL_LIMIT}")

    def result(self, value: Json) -> Encoded | None:
        """A result, ready to be stored. Raises BadArgument."""
        return None if value is None else encode(value, "result", self.result_bytes)

    def progress(self, value: Json) -> Encoded:
        return encode(value, "progress", self.progress_bytes)

    def checkpoint(self, value: Json) -> Encoded:
        """A checkpoint, ready to be stored. Raises BadArgument."""
        if isinstance(value, Mapping) and len(value) > self.checkpoint_entries:
            raise BadArgument.of("metadata", f"must have at most {self.checkpoint_entries} entries")
        return encode(value, "metadata", self.checkpoint_bytes)


class Redaction:
    """Hides what snapshots must not show."""

    def __init__(self, redact: Redact | None) -> None:
        self._function = redact if callable(redact) else None
        self._keys: frozenset[str] = frozenset()
        if redact is not None and not callable(redact):
            self._keys = frozenset(arguments.members(redact, "redact"))
            for key in self._keys:
                arguments.free_text(key, "redact", arguments.MOST_INT)

    def __call__(self, metadata: Mapping[str, str] | None) -> Mapping[str, str]:
        """What may be shown. Where the function fails, nothing but the keys is."""
        if not metadata:
            return {}
        if self._function is not None:
            try:
                return dict(checked_metadata(self._function(dict(metadata)), "redact"))
            except Exception as error:
                log.warning("redact failed (%s): all values are hidden", type(error).__name__)
                return dict.fromkeys(metadata, REDACTED)
        return {k: REDACTED if k in self._keys else v for k, v in metadata.items()}
