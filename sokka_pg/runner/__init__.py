"""Runs handlers: async ones as tasks of the loop, plain ones in threads, and those
registered with ``process=True`` in processes that can be killed."""

from __future__ import annotations

from sokka_pg.runner.attempt import Attempt
from sokka_pg.runner.running import Runner, Stores

__all__ = ["Attempt", "Runner", "Stores"]
