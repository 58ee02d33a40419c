# Commands on a fresh machine: `make compare`, `make test`, `make accept`, `make docs`. Each builds .venv once, from constraints.txt.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS := $(VENV)/.docs
ARGS ?=
export PYTHONDONTWRITEBYTECODE =  # else every process that a test starts compiles isograd anew

.PHONY: install compare accept accept-full test test-slow check format docs clean package lower newest

install: $(INSTALLED)  ## .venv with the command and the library, from this clone; the others build it when they need it
	@echo "isograd is installed. For this shell: . $(BIN)/activate"

compare: $(INSTALLED)  ## the main job; options by ARGS="--seeds 0 1 2"
	$(BIN)/isograd compare $(ARGS)

accept: $(INSTALLED)  ## every sentence of README and docs/measured.md that needs no other files, measured again; goes on if killed
	$(BIN)/python -m benchmarks.accept $(ARGS)

accept-full: $(INSTALLED)  ## the whole table, hours; ARGS="--data FOLDER" for what needs other text (docs/accept.md)
	$(BIN)/python -m benchmarks.accept --tier full $(ARGS)

# A file's tests stay in one process: they share what their fixtures have trained. tests/conftest.py says which go first.
test: $(INSTALLED)  ## the default suite, a process per core
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(ARGS)

test-slow: $(INSTALLED)  ## everything but what needs a GPU
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not gpu" $(ARGS)

check: $(INSTALLED)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Nothing is fetched; a warning is an error, such as a link without a target or a page that no menu shows.
docs: $(DOCS)  ## the site, in docs/_build/html/index.html; tutorials are executed, unchanged ones come from a cache
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet $(ARGS) docs docs/_build/html
	@echo "open docs/_build/html/index.html"

$(DOCS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

# torch first and alone: asked for by another package, pip would take the newest build instead of the pinned one.
$(INSTALLED): constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "isograd needs Python 3.11 or newer; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

package:  ## dist/: sdist and wheel of what is committed, the wheel tried in a bare environment
	.ci/package.sh

lower newest:  ## the default suite with the least versions that pyproject.toml names, or with the newest transformers
	.ci/versions.sh $@ $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache docs/_build docs/generated
