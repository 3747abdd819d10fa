# make demo and make test need Python 3.11 or newer and nothing else: the first call builds .venv, later calls reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One BLAS thread per test process: two processes on two cores beat four threads fighting over them.
WORKERS ?= 2

.PHONY: setup demo test check bench docs clean

setup: $(READY)

$(READY): pyproject.toml lab/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]' -e lab
	touch $(READY)

demo: setup
	$(BIN)/ham demo --out runs/demo

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: setup
	$(BIN)/ham bench core

docs: setup
	$(BIN)/python -m hamburger_lab.pages.documents

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
