"""Payloads of a given size."""

from __future__ import annotations

import hashlib
from functools import lru_cache


@lru_cache(maxsize=64)
def _digits(size: int) -> str:
    # Digits that hardly compress: a payload of equal letters would be stored in no time.
    blocks = (hashlib.sha512(str(n).encode()).hexdigest() for n in range(size // 128 + 1))
    return "".join(blocks)[:size]


def payload(size: int, number: int = 0) -> dict[str, str]:
    """An object whose JSON text has ``size`` bytes (30 at least), another for each number."""
    head = f"{number:09d}"
    return {"pad": head + _digits(max(0, size - len('{"pad":""}') - len(head)))}
