# make run    a real parameter sweep on this machine: progress, results, and where the time went
# make test   everything a change must pass
# make test-all  that, and what takes longer: pilots at a computing element of a grid
# make bench  benchmarks
# make experiments  small versions of the published experiments: pilot factories on grids, peer-to-peer scheduling
# make docs   the documentation as HTML, in site/
#
# Each sets up .venv by itself the first time. It needs a Python >= 3.11 (PYTHON=... to choose one), git and make.

VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?= -n 2 --dist loadgroup

.DEFAULT_GOAL := help
.PHONY: help run test test-all check unit engines bench experiments docs format clean

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

run: $(VENV)/base
	@PATH="$(CURDIR)/$(BIN):$$PATH" pilotfish run --workers $(WORKERS) --report --name oscillator \
		--param damping=0.2:2.0:0.2 --param seed=1..4 -- examples/oscillator.py {damping} {seed}
	@echo "Next:  . $(VENV)/bin/activate && pilotfish demo"

test: check unit

test-all: $(VENV)/all-engines
	@PILOTFISH_ENGINES=all $(MAKE) --no-print-directory test

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real batch systems are part of the tests; PILOTFISH_ENGINES=none does without.
ifneq ($(PILOTFISH_ENGINES),none)
unit: $(VENV)/engines
endif

unit: $(VENV)/dev $(VENV)/tests
	CPYTHON_LIB="$$(ls -d $(CURDIR)/$(VENV)/cpython/usr/lib/python3.* 2>/dev/null)" $(BIN)/pytest $(PYTEST_ARGS)

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

# The two stamps are newer than pyproject.toml when all that it asks for is installed.
$(VENV)/base: pyproject.toml
	@.ci/setup $(VENV) .
	@touch $@

$(VENV)/tests: $(VENV)/dev
	@.ci/cpython-tests $(VENV)
	@touch $@

$(VENV)/engines: .ci/engines | $(VENV)/dev
	@.ci/engines
	@touch $@

$(VENV)/all-engines: .ci/engines | $(VENV)/dev
	@.ci/engines arc
	@touch $@

$(VENV)/dev: pyproject.toml
	@.ci/setup $(VENV) '.[dev]'
	@touch $(VENV)/base $@
