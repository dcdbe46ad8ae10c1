# make run    install what is needed, then serve a small model over two workers on this machine
# make test   install what is needed, then run the tests
# make check  format, lint, types, import contracts, sizes
# make clean  remove the virtual environment and every cache of this folder
#
# PYTHON=python3.12 chooses the interpreter (3.11 or newer), PORT=9000 the port, ARGS="…" adds flags.

PYTHON ?= python3
PORT ?= $(or $(LLAMA_ARG_PORT),8080)
ARGS ?=
PYTEST_ARGS ?=
# What the native kernels are built from when the package is installed.
NATIVE := setup.py $(wildcard app/kernels/cpu/csrc/*)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: run test check clean

run: $(VENV)/.installed
	@$(BIN)/llama-serve --demo --port $(PORT) $(ARGS)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/style

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "llama-serve needs Python 3.11 or newer; name one with PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(NATIVE) | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
