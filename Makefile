# make run    a real parameter sweep on this machine: progress, results, and where the time went
# make test   what a change must pass: checks and tests, within 10 minutes on 2 cores
# make campaign  the long tests: 100 000 simulated faults, every planted bug, slow engines, a grid, other libraries; within 30 minutes
# make bench  benchmarks
# make experiments  small versions of the published experiments: pilot factories on grids, peer-to-peer scheduling
# make docs   the documentation as HTML, in site/
#
# Each sets up .venv by itself the first time. It needs a Python >= 3.11 (PYTHON=... to choose one), git and make.

VENV := .venv
BIN := $(VENV)/bin
WORKS_WITH := $(VENV)/works-with
CORES ?= $(shell nproc 2>/dev/null || echo 2)
# Most tests wait for other processes, so that six at a time keep two cores busy.
PYTEST_ARGS ?= -n 6 --dist loadgroup
PYTEST = CPYTHON_LIB="$$(ls -d $(CURDIR)/$(VENV)/cpython/usr/lib/python3.* 2>/dev/null)" $(BIN)/pytest

# Without cached bytecode each process of the tests compiles all its modules again.
unexport PYTHONDONTWRITEBYTECODE

# Real batch systems are part of the tests; PILOTFISH_ENGINES=none does without.
ifneq ($(PILOTFISH_ENGINES),none)
ENGINES := $(VENV)/engines
ALL_ENGINES := $(VENV)/all-engines
endif

.DEFAULT_GOAL := help
.PHONY: help run test campaign check unit setup engines bench experiments docs format clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

run: $(VENV)/base
	@PATH="$(CURDIR)/$(BIN):$$PATH" pilotfish run --local-cores $(CORES) --report --name oscillator \
		--param damping=0.2:2.0:0.2 --param seed=1..4 -- examples/oscillator.py {damping} {seed}
	@echo "Next:  . $(VENV)/bin/activate && pilotfish demo"

test:
	@$(MAKE) --silent --jobs setup
	@.ci/test

# Runs some tests: make unit PYTEST_ARGS='tests/unit/cli -x'
unit: setup
	$(PYTEST) -m 'not campaign' $(PYTEST_ARGS)

campaign: setup $(ALL_ENGINES) $(WORKS_WITH)/installed
	$(PYTEST) -m campaign $(PYTEST_ARGS)

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/dev $(ENGINES) $(VENV)/tests

engines:
	@.ci/engines

bench: $(VENV)/dev
	$(BIN)/python -m benchmarks

# Larger sizes: make experiments GRID_ARGS=200 OVERLAY_ARGS=
GRID_ARGS ?= 5
OVERLAY_ARGS ?= --pilots 20 --tasks 60 --seeds 1

experiments: $(VENV)/dev
	$(BIN)/python -m experiments.grid $(GRID_ARGS)
	$(BIN)/python -m experiments.overlay $(OVERLAY_ARGS)

docs: $(VENV)/dev
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --quiet --strict
	@echo "Open site/index.html"

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) site build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# The stamps are newer than pyproject.toml when all that it asks for is installed.
$(VENV)/base: pyproject.toml
	@.ci/setup $(VENV) .
	@touch $@

# After the engines: both call apt, which does one thing at a time.
$(VENV)/tests: $(VENV)/dev | $(ENGINES)
	@.ci/cpython-tests $(VENV)
	@touch $@

$(VENV)/engines: .ci/engines
	@.ci/engines
	@mkdir -p $(VENV)
	@touch $@

$(VENV)/all-engines: .ci/engines | $(VENV)/engines
	@.ci/engines arc
	@touch $@

# An environment of its own: the libraries may not change the versions with which everything else is tested.
$(WORKS_WITH)/installed: pyproject.toml | $(VENV)/dev
	@.ci/setup $(WORKS_WITH) '.[works-with]'
	@touch $@

$(VENV)/dev: pyproject.toml
	@.ci/setup $(VENV) '.[dev]'
	@touch $(VENV)/base $@
