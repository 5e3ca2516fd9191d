# make demo: set up .venv and run the main job on the shipped traces.   make test: everything the tests cover.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test test-live fuzz lint docs clean

# Core only: the analysis half runs without torch.
$(VENV)/.core: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[server]'
	touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.core
	$(PIP) install -e '.[capture,server,cluster,perfetto,docs,dev]'
	touch $@

demo: $(VENV)/.core
	$(BIN)/hta-dsv4 shares original mma split_k
	$(BIN)/hta-dsv4 diff original mma split_k
	$(BIN)/hta-dsv4 shares split_k --by bucket,origin
	$(BIN)/hta-dsv4 scaling split_k_8k split_k_64k split_k --param max_context
	mkdir -p build
	$(BIN)/hta-dsv4 report original mma split_k indexer_triton mhc_fused cuda_graph fp8_split -o build/report.html \
		--companion cuda_graph=cuda_graph_eager --companion fp8_split=fp8_split_eager

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Capture and sweep against a real vLLM server on the CPU; installs it in .venv-live (3.5 GB) where it is not yet.
LIVE ?= tests/live
test-live: $(VENV)/.dev
	PYTHON=$(PYTHON) scripts/install_live.sh
	HTA_DSV4_LIVE=1 $(BIN)/python -m pytest $(LIVE)

# The reader against mutated traces and an independent slow reader; finds are left in build/fuzz.
MINUTES ?= 15
fuzz: $(VENV)/.dev
	OMP_NUM_THREADS=1 nice $(BIN)/python -m tests.fuzz --minutes $(MINUTES)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site, in build/site; a warning is an error.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

clean:
	rm -rf $(VENV) .venv-live build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
