# Every command of this repository. A fresh clone needs Python 3.11 or newer, make and git; nothing is installed outside .venv.
#
# A stamp file stands for an installation: it is older than pyproject.toml when something there changed, and only then
# pip runs again. The package is installed in place, so a change of the source needs no new installation.

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

# Tests start Python a thousand times. Where nothing may write bytecode, each of these would compile Holdfast again. Four test
# workers keep two cores busy, because many tests wait for other processes: with three, all tests take a sixth longer.
# Stores of tests are in memory where there is room: a sync to a disk takes 3 ms, in which a test only waits. The tests that count
# syncs and cut the power do so by themselves, and make prove uses the disk.
MEMORY := $(shell grep -qs '^[^ ]* /dev/shm [^ ]* [^ ]*noexec' /proc/mounts || df -Pk /dev/shm 2>/dev/null \
	| awk 'NR == 2 && $$4 > 6000000 {print $$6}')
PYTEST := PYTHONDONTWRITEBYTECODE= $(MEMORY:%=PYTEST_DEBUG_TEMPROOT=%) $(BIN)/python -m pytest --workers 4 \
	-o tmp_path_retention_count=1

# The newest Python that really runs (a version manager's shim may exist and fail), is new enough and can make a .venv. Of several with
# one name the quickest, because a version manager builds Python without its optimizations, and all tests take nearly twice the time.
TRIAL := import sys, time, venv, ensurepip; sys.version_info < (3, 11) and sys.exit(1); began = time.process_time(); \
	sum(number * number for number in range(500_000)); print(f"{time.process_time() - began:.4f}", sys.executable)
PYTHON ?= $(shell IFS=:; for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
	for folder in $$PATH; do "$$folder/$$python" -c '$(TRIAL)' 2>/dev/null; done | sort | cut -d' ' -f2- | head -n1 | grep . && break; done)

# A .venv whose Python is gone (uninstalled, moved) holds no installation, whatever its stamps say.
ifeq ($(shell test -x $(BIN)/python || echo gone),gone)
$(shell rm -f $(VENV)/.installed $(VENV)/.installed-dev $(VENV)/.installed-night)
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check check-types check-tests check-page pictures bench bench-full prove prove-night format clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## kill a workflow in the middle, and resume it
	@$(BIN)/holdfast demo

test: $(VENV)/.installed-dev ## run all tests (ARGS="-k fence" chooses)
	@$(PYTEST) --hypothesis-profile quick $(ARGS)

# Each Python has a .venv of its own, so that the one of every day stays as it is.
VERSIONS := 3.11 3.12 3.13 3.14
test-all: ## run all tests with every Python from 3.11 to 3.14 that is installed
	@passed=; failed=; missing=; \
	for version in $(VERSIONS); do \
		if python$$version -c 'import venv, ensurepip' >/dev/null 2>&1; then \
			echo "--- Python $$version"; \
			if $(MAKE) --no-print-directory test VENV=.venv-$$version PYTHON=python$$version; \
			then passed="$$passed $$version"; else failed="$$failed $$version"; fi; \
		else missing="$$missing $$version"; fi; \
	done; \
	echo "passed:$${passed:- none}; failed:$${failed:- none}; not installed, or without venv:$${missing:- none}"; \
	test -z "$$failed" -a -n "$$passed"

# Tests keep one core busy, and the checkers the other one. Each prints when it ends; a failure of either is one of this target.
check: $(VENV)/.installed-dev ## format, lint, types, architecture and core tests: under 30 s
	@$(BIN)/ruff format --check --quiet --output-format concise . || { echo "Some files are not formatted. Run: make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(MAKE) --no-print-directory --jobs=2 check-types check-tests

check-types: $(VENV)/.installed-dev
	@$(BIN)/mypy
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory check-page; \
	else echo "npm is missing: the scripts of the page are not checked"; fi

check-tests: $(VENV)/.installed-dev
	@$(PYTEST) -q --hypothesis-profile quick tests/test_architecture.py tests/test_repository.py tests/test_bench.py tests/core

check-page: node_modules/.installed ## types of the web page, and tests of its pure modules (needs npm)
	@npm run --silent check
	@npm run --silent test

pictures: $(VENV)/.installed-dev ## make the pictures of the web page in docs/pictures again (ARGS=--check compares; needs chromium)
	@PYTHONPATH=. $(BIN)/python tests/page/pictures.py $(ARGS)

bench: $(VENV)/.installed-dev ## measure speed and size on this disk, beside the peers: about 5 minutes
	@$(BIN)/python -m bench $(ARGS)

bench-full: $(VENV)/.installed-dev ## the same with more rounds, and the peers at full size
	@$(BIN)/python -m bench --full $(ARGS)

prove: $(VENV)/.installed-dev ## simulate, crash, cut the power, stop, kill: one table, under 12 minutes
	@$(BIN)/python tests/proof/prove.py $(ARGS)

prove-night: $(VENV)/.installed-night ## the same for hours (HOURS=8), and the coverage and the mutants of the core
	@$(BIN)/python tests/proof/prove.py --hours $(or $(HOURS),8) $(ARGS)

format: $(VENV)/.installed-dev ## format the code and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove .venv, caches and build results
	rm -rf node_modules $(VENV) $(VERSIONS:%=.venv-%) bench/peers/.venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A venv that could not be finished is removed: its python would look like a good one to the next make.
$(BIN)/python:
	@test -n "$(PYTHON)" || { \
		echo "Found no Python 3.11 or newer that can make a virtual environment."; \
		echo "Install one (on Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python"; \
		exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml $(BIN)/python
	@echo "Installing Holdfast into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml $(BIN)/python
	@echo "Installing Holdfast and what its tests need into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

node_modules/.installed: package.json
	@echo "Installing the type checker of the page into node_modules ..."
	@npm install --silent --no-audit --no-fund
	@touch $@

$(VENV)/.installed-night: $(VENV)/.installed-dev
	@echo "Installing what a night of proving needs into $(VENV) ..."
	@$(PIP) --editable '.[dev,night]'
	@touch $@
