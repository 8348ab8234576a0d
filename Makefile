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

# 75 seconds of self-play, then 100 games against each scripted team; the run folder gets a video, a picture, a report.
demo: RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
demo: setup
	$(BIN)/powerband train snakes variant=demo gpus=none nproc=2 run_dir=$(RUN)
	$(BIN)/powerband eval $(RUN)
	@$(BIN)/powerband report $(RUN) > /dev/null
	@echo "report:  $(RUN)/report.html"
	@echo "video:   $(RUN)/videos/greedy.mp4"
	@echo "picture: $(RUN)/game-greedy.png"

test: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q

test-all: setup
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q -m 'slow or not slow'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The tables of the README, about 15 minutes; benchmarks/learning.py (hours of training) is run by its own words.
bench: setup
	for name in snakes_env snakes_features updates replay vector_env end_to_end; do \
		$(BIN)/python benchmarks/$$name.py --json benchmarks/results/$$name.json || exit 1; \
	done
	$(BIN)/powerband bench update-interval --json benchmarks/results/update_interval.json
