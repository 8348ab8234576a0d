# Six words: setup, demo, test, test-all, lint, bench. Each works alone on a fresh machine.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TORCH  ?= torch==2.13.0

.PHONY: setup demo test test-all lint bench

setup: $(STAMP)

# torch first, then everything else under the constraint that torch stays what it is.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	$(BIN)/python -c 'import torch; print("torch==" + torch.__version__)' > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[gym,cuda,peers,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/powerband demo

test: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q

test-all: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -m 'slow or not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: setup
	$(BIN)/python benchmarks/snakes_env.py --json benchmarks/results/snakes_env.json
	$(BIN)/python benchmarks/updates.py --json benchmarks/results/updates.json
	$(BIN)/powerband bench update-interval --json benchmarks/results/update_interval.json
