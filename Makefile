# Every target needs Python 3.11 or newer and nothing else: the first call builds .venv, later calls reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Exact versions with hashes, for Linux on x86-64 and Python 3.11. Elsewhere, and with `make setup LOCK=`, pip chooses
# within the ranges of pyproject.toml. `make setup CPU=1` installs torch and torchvision without CUDA, and uses no lock.
CPU ?=
CPU_INDEX := https://download.pytorch.org/whl/cpu
LOCK ?= $(if $(CPU),,$(shell $(PYTHON) -c 'import platform as p; print("requirements/lock.txt" \
	if (p.system(), p.machine(), p.python_version_tuple()[:2]) == ("Linux", "x86_64", ("3", "11")) else "")'))
# One BLAS thread per test process: two processes on two cores are faster than four threads that share them.
WORKERS ?= 2
PYTEST  = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
INTERPRETED = TRITON_INTERPRET=1 $(PYTEST) # a session of its own: Triton reads the variable when it is imported

.DEFAULT_GOAL := help
.PHONY: help setup lock lint test test-kernels test-all test-app test-examples soak fuzz check demo bench pages notebooks docs dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## build .venv with the library, the lab and the development tools; CPU=1: without CUDA

$(READY): pyproject.toml lab/pyproject.toml requirements/lock.txt
	$(PYTHON) -m venv $(VENV)
ifeq ($(LOCK),)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(if $(CPU),$(BIN)/python -m pip install --quiet torch torchvision --index-url $(CPU_INDEX))
	$(BIN)/python -m pip install --quiet -e '.[dev]' -e lab
else
	$(BIN)/python -m pip install --quiet --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e . -e lab
endif
	touch $(READY)

lock: setup ## choose the newest versions within the ranges of pyproject.toml, write requirements/lock.txt
	$(BIN)/python -m pip install --quiet uv
	echo editables | $(BIN)/uv pip compile pyproject.toml - --extra dev --upgrade --quiet \
		--python-version 3.11 --python-platform x86_64-unknown-linux-gnu --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --no-emit-package hamburger \
		--output-file requirements/lock.txt

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

test-app: setup ## test `ham app` in a browser; installs Gradio, and Chromium where it is missing and may be installed
	$(BIN)/python -m pip install --quiet -r requirements/app.txt
	command -v chromium >/dev/null || apt-get install --yes --quiet chromium || echo "no chromium: the browser tests are skipped"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/app

test-examples: setup ## run the scripts of examples/ and the tests against other libraries; installs these libraries
	$(BIN)/python -m pip install --quiet -r requirements/examples.txt
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs tests/test_examples.py tests/frameworks

soak: setup ## kill training runs 1,000 times and compare how they end (hours)
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak.py

fuzz: setup ## read 100,000 damaged and hostile files; FUZZ="--cases 5000 --seed 1 --readers png recipe" chooses (hours)
	OMP_NUM_THREADS=1 $(BIN)/python tests/run_fuzz.py $(FUZZ)

check: lint test test-kernels ## what CI runs

demo: setup ## train HamNet with NMF, CD, self-attention and no context on generated scenes, write runs/demo
	$(BIN)/ham demo --out runs/demo

bench: setup ## time the hams against attention on this machine
	$(BIN)/ham bench core

pages: setup ## regenerate the documents that show results
	$(BIN)/python -m hamburger_lab.pages.documents

notebooks: setup ## run the notebooks of docs/tutorials and store their outputs
	OMP_NUM_THREADS=1 $(BIN)/python tools/notebooks.py docs/tutorials/*.ipynb

docs: setup ## build the documentation site into build/site; a broken link fails
	$(BIN)/python -m pip install --quiet -r requirements/docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: setup ## build wheels and source archives of both packages into dist/, and check them
	$(BIN)/python -m pip install --quiet twine
	cd lab && ../$(BIN)/python -m hatchling build -d ../dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/twine check --strict dist/*

clean: ## remove .venv, runs, dist, build and caches
	rm -rf $(VENV) runs dist build .pytest_cache .mypy_cache .ruff_cache
