# Every target needs Python 3.11 or newer and nothing else: the first call builds .venv, later calls reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One BLAS thread per test process: two processes on two cores are faster than four threads that share them.
WORKERS ?= 2
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
INTERPRETED = TRITON_INTERPRET=1 $(PYTEST) # a session of its own: Triton reads the variable when it is imported

.DEFAULT_GOAL := help
.PHONY: help setup lint test test-kernels test-all check demo bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv with the library, the lab and the development tools

$(READY): pyproject.toml lab/pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev]' -e lab
	touch $(READY)

lint: setup ## ruff format --check, ruff check, mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup ## what a Python change can break (at most 5 minutes on 2 cores)
	$(PYTEST) -m "not kernels and not full"

test-kernels: setup ## interpreted, emulated and compiled kernels (at most 10 minutes on 2 cores)
	$(PYTEST) -m "kernels and not full"
	$(INTERPRETED) -m "not full"

test-all: setup ## every test: both of the above, and the long ones
	$(PYTEST)
	$(INTERPRETED)

check: lint test test-kernels ## what CI runs

demo: setup ## train HamNet with NMF, CD, self-attention and no context on generated scenes, write runs/demo
	$(BIN)/ham demo --out runs/demo

bench: setup ## time the hams against attention on this machine
	$(BIN)/ham bench core

docs: setup ## regenerate the documents that show results
	$(BIN)/python -m hamburger_lab.pages.documents

clean: ## remove .venv, runs and caches
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
