"""What is built works on its own, away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = """
import sys
from pathlib import Path
from sokka_pg import migrate, schema
url, folder = sys.argv[1:]
for root in (schema.sql_root(), schema.migrations_root()):
    assert root.is_relative_to(Path(folder).resolve()), root
migrate.upgrade(url, "jobs")
assert migrate.check(url, "jobs").ok, migrate.check(url, "jobs")
assert migrate.fence_only(url, "fences")
assert "create function jobs.create_task" in migrate.sql("jobs")
migrate.downgrade(url, "jobs")
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from that sdist."""
    folder = tmp_path_factory.mktemp("built")
    run = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


def tree(*parts: str) -> set[str]:
    """The files of a folder of the checkout, as paths from its root."""
    folder = ROOT.joinpath(*parts)
    return {
        file.relative_to(ROOT).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def test_the_wheel_carries_the_package_its_sql_and_its_migrations(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    found = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    expected = {
        name.replace("sql/", "sokka_pg/_sql/", 1) if name.startswith("sql/") else name
        for name in tree("sokka_pg") | tree("sql")
    }
    expected |= {"sokka_pg/_" + name for name in tree("migrations", "versions")}
    assert found == expected | {"sokka_pg/_migrations/env.py"}


def test_the_sdist_carries_the_tests_but_nothing_private(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tree("sql") | tree("migrations") | tree("tests") | {"Makefile", "LICENSE"} <= names
    private = [n for n in names if n.startswith((".venv", ".git/", ".sokka", ".ci"))]
    assert private == []


def test_the_wheel_works_outside_the_checkout(built: Path, tmp_path: Path, empty_db: str) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "a site"
    zipfile.ZipFile(wheel).extractall(site)
    run = subprocess.run(
        [sys.executable, "-c", OUTSIDE, empty_db, site],
        capture_output=True, text=True, check=False,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_one_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"]
    assert "dynamic" not in project
    for file in (ROOT / "sokka_pg").rglob("*.py"):
        assert "__version__ =" not in file.read_text(), file


def test_compose_names_the_oldest_and_the_newest_server() -> None:
    # Parsed only: whether the containers come up needs a Docker daemon.
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    images = {name: service["image"] for name, service in services.items()}
    assert images == {"oldest": "postgres:14", "newest": "postgres:18"}
    for service in services.values():
        assert service["healthcheck"]["test"][0] == "CMD"
        assert [port for port in service["ports"] if not port.startswith("127.0.0.1:")] == []
