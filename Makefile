# Targets: setup, demo, test, test-all, soak, lint, bench, peers, docs, gpu. Each works alone on a fresh machine; gpu uses what it has.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TORCH  ?= torch==2.13.0
# What rendering without a display needs of the system, by Debian's names; a run that renders nothing needs none of it.
RENDER := libegl1 libgl1 libosmesa6

# Many containers set this variable. Without stored bytecode each process compiles the modules of torch again, which takes
# five seconds instead of two.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-all soak lint bench peers docs gpu

setup: $(STAMP)

# torch first, then everything else under the constraint that torch stays what it is. Python compiles and stores what it
# imports; to compile all 23,000 modules would take more than a minute.
$(STAMP): pyproject.toml
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing $(TORCH), then the simulators and tools: several gigabytes, a few minutes."
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet --no-compile $(TORCH)
	$(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --no-compile --constraint $(VENV)/constraints.txt --editable '.[gym,atari,agents,metaworld,pool,diffusion,libero,deepspeed,encoders,cuda,tune,peers,dev]'
	@$(call rendering)
	touch $(STAMP)

# Installs what is missing where that is allowed; never fails: it says what to run instead.
define rendering
have() { $(BIN)/python -S -c 'import ctypes; [ctypes.CDLL(n) for n in ("libEGL.so.1", "libGL.so.1")]' 2>/dev/null; }; \
have || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { timeout 120 apt-get update -qq; \
for package in $(RENDER); do DEBIAN_FRONTEND=noninteractive timeout 120 apt-get install -y -qq $$package; done; } >/dev/null 2>&1 </dev/null; }; \
have || echo "To render (videos, cameras) without a display, run: sudo apt-get install -y $(RENDER)"
endef

# 75 seconds of self-play, then 100 games against each scripted team; the run folder gets a video, a picture, a report.
demo: RUN := runs/demo-$(shell date +%Y%m%d-%H%M%S)
demo: setup
	$(BIN)/powerband train snakes variant=demo gpus=none nproc=2 run_dir=$(RUN)
	$(BIN)/powerband eval $(RUN)
	@$(BIN)/powerband report $(RUN) > /dev/null
	@echo "report:  $(RUN)/report.html"
	@echo "video:   $(RUN)/videos/greedy.mp4"
	@echo "picture: $(RUN)/game-greedy.png"

# Two at a time, then what measures seconds by itself.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -q
PAIRS  := -n 2 --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST) $(PAIRS) -m 'not slow and not timed'
	$(PYTEST) -m 'not slow and timed'

test-all: setup
	$(PYTEST) $(PAIRS) -m 'not timed'
	$(PYTEST) -m timed

# About eight hours: one random fault per minute in runs of all recipes, then their bits. A second start continues.
SOAK := $(CURDIR)/build/soak
soak: setup
	mkdir -p $(SOAK)
	$(BIN)/python benchmarks/reliability/soak.py --faults 480 --every 60 --length 40 --save-interval-s 20 \
		--folder $(SOAK) --json $(SOAK)/soak.json

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tables of the README, about 15 minutes; benchmarks/learning/scores.py (hours of training) is run separately.
bench: setup
	for script in environments/snakes_env environments/snakes_features updates/updates updates/replay \
			environments/vector_env training/end_to_end; do \
		$(BIN)/python benchmarks/$$script.py --json benchmarks/results/$$script.json || exit 1; \
	done
	$(BIN)/powerband bench update-interval --json benchmarks/results/training/update_interval.json

# Frameworks that benchmarks compare with or attach to, in build/peers. They replace no package of the environment.
peers: setup
	$(BIN)/pip install --quiet --no-compile --no-deps --upgrade --target build/peers --requirement benchmarks/peers.txt

# The documentation as a site in both languages, in build/site. Only the installation of mkdocs needs a network.
docs: setup
	$(BIN)/python -c 'import material, mkdocs_static_i18n' 2>/dev/null || \
		$(BIN)/pip install --quiet --constraint $(VENV)/constraints.txt --editable '.[docs]'
	$(BIN)/python scripts/reference.py
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet

# GPU tests and all figures that need a GPU, in nine minutes. Installs nothing but WHEELS=folder: it uses PYTHON if that is
# given, else the virtual environment if there is one, else python3. OPTIONS are those of the script, such as --dry-run.
GPU_PYTHON := $(if $(filter file default undefined,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
gpu:
	$(GPU_PYTHON) scripts/first_gpu.py $(if $(WHEELS),--wheels '$(WHEELS)') $(OPTIONS)
