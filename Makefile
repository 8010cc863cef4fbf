# parsimax: every target sets up what it needs, so a bare clone with Python 3.11+ and pip is enough.

PYTHON ?= python3
OUT    ?= out
JOBS   ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.ready
STEP  := @printf '\n== %s\n'

# One thread for each process: workers must not fight over cores, and timings must repeat.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup test lint types layers unit wheel demo bench format clean

help: ## show this list
	@echo "parsimax: make <target>"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## build .venv with pinned versions (instant when it is up to date)
	@echo "ready: $(BIN)/parsimax --help"

# The build backend goes in first and isolation is off, so that every package comes from the pins.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or \
	  sys.exit(f"parsimax needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}; try make PYTHON=python3.11")'
	$(STEP) 'setup: building $(VENV) (a few minutes the first time)'
	@rm -f $(STAMP)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt hatchling editables
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
	  --constraint constraints.txt --editable '.[dev,cli,viz,bench,train,huggingface]'
	@touch $(STAMP)

test: lint types layers unit wheel ## everything: style, types, layers, tests, doctests, the wheel
	$(STEP) 'all green'

lint: $(STAMP) ## ruff: rules and format
	$(STEP) 'ruff'
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict
	$(STEP) 'mypy --strict'
	@$(BIN)/mypy --strict

layers: $(STAMP) ## import-linter: each layer imports only what is below it
	$(STEP) 'import-linter'
	@$(BIN)/lint-imports

unit: $(STAMP) ## pytest with doctests (ARGS="-k entmax" to choose)
	$(STEP) 'pytest'
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) $(ARGS)

wheel: $(STAMP) ## build the wheel and use it outside this tree
	$(STEP) 'wheel'
	@$(BIN)/python .ci/check_wheel.py

demo: $(STAMP) ## train a sparse model of English verbs and write an HTML report (4 minutes at most)
	@$(BIN)/parsimax demo --out $(OUT) $(ARGS)

bench: $(STAMP) ## time mappings and losses against their peers, on a GPU if there is one
	@$(ONE_THREAD) $(BIN)/parsimax bench rows $(ARGS)
	@$(ONE_THREAD) $(BIN)/parsimax bench loss
	@$(ONE_THREAD) $(BIN)/parsimax bench simplex

format: $(STAMP) ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## remove .venv and everything that was built
	@rm -rf $(VENV) $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
