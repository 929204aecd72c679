"""The worker's decisions, without I/O: (input, now) → commands."""

from __future__ import annotations

from sokka_pg.engine.desk import Engine, EngineSettings

__all__ = ["Engine", "EngineSettings"]
