# Everything runs in ./.venv, made from pyproject.toml with python3 and the
# package index alone. ARGS goes to the command: make test ARGS="-k migrate".
SHELL := /bin/sh
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-long check bench bench-peers simulate kills chaos freeze clean

demo: $(READY)
	$(BIN)/sokka demo $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ARGS)

# What takes minutes: faults one by one, failovers, a whole run of faults (docs/proof.md).
test-long: $(READY)
	$(BIN)/python -m pytest -n 2 --long -m long $(ARGS)

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python migrations/freeze.py --check
	$(BIN)/python -m pytest -q tests/migrations/test_replay.py tests/migrations/test_package.py

# ARGS="--parts floor,drain --rounds 5"; --help says the rest.
bench: $(READY) .venv/bench
	$(BIN)/python -m tests.bench $(ARGS)

# The same work by other queues, each installed below .bench/ from its own registry.
bench-peers: $(READY) .venv/bench
	$(BIN)/python -m tests.bench.peers $(ARGS)

.venv/bench: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input \
	  --editable '.[embedded,test,dev,bench]'
	touch .venv/bench

# Interleavings from a seed: SEED=, ROUNDS=, THEME=, MUTANT=, PG= (docs/proof.md).
simulate: $(READY)
	$(BIN)/python -m tests.proof

# Workers killed by SIGKILL at random instants: KILLS=, SEED=, PG= (docs/proof.md).
kills: $(READY)
	$(BIN)/python -m tests.faults.kills

# Real processes, broken on purpose: DURATION=, SEED=, PG=, ACTS=, MUTANT=, OUT= (docs/proof.md).
chaos: $(READY)
	$(BIN)/python -m tests.faults.chaos

# Copies sql/ into the newest revision that no release has carried yet.
freeze: $(READY)
	$(BIN)/python migrations/freeze.py

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one: make PYTHON=python3.12" >&2; exit 1; }
	rm -rf .venv
	@$(PYTHON) -m venv .venv || \
	  { echo "python3 cannot make a venv here; on Debian: apt-get install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input \
	  --editable '.[embedded,test,dev]'
	touch $(READY)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
