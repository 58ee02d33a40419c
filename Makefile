# Two commands on a fresh machine: `make compare` and `make test`. Each builds .venv once, from constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=

.PHONY: compare test test-slow check format clean

compare: $(INSTALLED)  ## the main job; options by ARGS="--seeds 0 1 2"
	$(BIN)/isograd compare $(ARGS)

test: $(INSTALLED)  ## the default suite
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(INSTALLED)  ## everything but what needs a GPU
	$(BIN)/python -m pytest -m "not gpu" $(ARGS)

check: $(INSTALLED)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch first and alone: asked for by another package, pip would take the newest build instead of the pinned one.
$(INSTALLED): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isograd needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
