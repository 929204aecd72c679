"""Where peers are installed: a venv each, a folder for those of Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.host import ROOT

ADAPTERS = Path(__file__).parent / "adapters"
_PYTHONS = ("python3.14", "python3.13", "python3.12", "python3.11")
# Recent releases of both Node queues ask for it; the npm package brings the program.
_NODE = "node@22"


class Missing(Exception):
    """A peer that cannot be run here; the text says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a peer is had: its adapter, what is installed, which Python it needs."""

    adapter: str
    packages: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)

    @property
    def name(self) -> str:
        return Path(self.adapter).stem.rstrip("_")


RECIPES = (
    Recipe("sokka_.py"),
    Recipe("procrastinate_.py", ("procrastinate", "psycopg[binary,pool]", "uvloop")),
    Recipe("pgqueuer_.py", ("pgqueuer[asyncpg]", "uvloop")),
    Recipe("awa_.py", ("awa-pg",)),
    Recipe("chancy_.py", ("chancy", "psycopg[binary]")),
    Recipe("oban_.py", ("oban", "uvloop"), python=(3, 12)),
    Recipe("dramatiq_.py", ("dramatiq-pg", "dramatiq", "psycopg2-binary", "setuptools<80")),
    Recipe("graphile_worker.mjs", ("graphile-worker", "pg")),
    Recipe("pg_boss.mjs", ("pg-boss", "pg")),
)


def command(recipe: Recipe, cache: Path) -> tuple[list[str], dict[str, str]]:
    """What starts the adapter, with its environment; installs it first where needed."""
    if recipe.adapter.endswith(".mjs"):
        return _node(recipe, cache / "node")
    adapter = str(ADAPTERS / recipe.adapter)
    if not recipe.packages:
        return [sys.executable, adapter], {**os.environ, "PYTHONPATH": str(ROOT)}
    folder = cache / f"venv-{recipe.name}"
    program = folder / "bin" / "python"
    if not _done(folder, recipe.packages):
        _run(_python(recipe.python), "-m", "venv", "--clear", str(folder))
        _run(str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--no-input", *recipe.packages)  # fmt: skip
        _mark(folder, recipe.packages)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return [str(program), adapter], environment


def _node(recipe: Recipe, folder: Path) -> tuple[list[str], dict[str, str]]:
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not installed")
    wanted = tuple(sorted({p for r in RECIPES if r.adapter.endswith(".mjs") for p in r.packages}))
    modules = folder / "node_modules"
    program = modules / "node" / "bin" / "node"
    if not _done(folder, wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({"private": True}))
        quiet = ("--no-fund", "--no-audit", "--loglevel=error", "--prefix", str(folder))
        _run(npm, "install", _NODE, *quiet)
        path = f"{program.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        _run(npm, "install", *wanted, *quiet, env={**os.environ, "PATH": path})
        _mark(folder, wanted)
    environment = {**os.environ, "BENCH_MODULES": str(modules), "NODE_ENV": "production"}
    return [str(program), str(ADAPTERS / recipe.adapter)], environment


def _python(least: tuple[int, int]) -> str:
    if sys.version_info[:2] >= least:
        return sys.executable
    installed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [found for name in _PYTHONS if (found := shutil.which(name))]
    candidates += [str(found) for found in sorted(installed.glob("3.*/bin/python"), reverse=True)]
    for program in candidates:
        asked = "import sys; sys.exit(sys.version_info[:2] < " + repr(least) + ")"
        said = subprocess.run([program, "-c", asked], capture_output=True, check=False)
        if said.returncode == 0:
            return program
    raise Missing(f"it needs Python {least[0]}.{least[1]}")


def _run(*words: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{Path(words[0]).name} {words[1]}: {said[-1] if said else 'failed'}")


def _done(folder: Path, packages: Sequence[str]) -> bool:
    mark = folder / "installed"
    return mark.exists() and mark.read_text() == "\n".join(packages)


def _mark(folder: Path, packages: Sequence[str]) -> None:
    (folder / "installed").write_text("\n".join(packages))
