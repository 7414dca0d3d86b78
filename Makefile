# Thin targets: each runs one program that has a --help. ARGS="..." passes arguments on.

PYTHON ?= python3.11
HTTP_PORT ?= 8000
GRPC_PORT ?= 8001
METRICS_PORT ?= 8002
TARGET ?= qwen3-8b
PRECISION ?=
ARGS ?=
# make serve ENGINE=torch DEVICE=cuda DTYPE=bfloat16; ENGINE=tensorrt_llm finds its settings beside the engines
ifneq ($(filter torch openvino stock,$(ENGINE)),)
export ANGELSPEC_TARGET__ENGINE = $(ENGINE)
endif
ifdef DEVICE
export ANGELSPEC_TARGET__DEVICE = $(DEVICE)
endif
ifdef DTYPE
export ANGELSPEC_TARGET__DTYPE = $(DTYPE)
endif

RUN := .venv/bin/python -m
# In TensorRT-LLM's container that is its own Python; elsewhere the environment, which can only show the steps.
ENGINES_PYTHON ?= $(shell python3 -c "import importlib.util as u, sys; sys.exit(not u.find_spec('tensorrt_llm'))" 2>/dev/null \
	&& echo python3 || echo .venv/bin/python)
ENGINES_SETUP = $(if $(filter .venv%,$(ENGINES_PYTHON)),setup)

.PHONY: help setup demo serve test test-fast test-container fuzz lint load-test bench-overhead bench-engine exactness test-cuda bench-cuda plan engines train-drafters eval-drafters clean
.DEFAULT_GOAL := help

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 18

setup: ## environment, packages, embedded model (PYTHON=..., PIP_ARGS=...)
	@PIP_ARGS="$(PIP_ARGS)" $(PYTHON) -m build_scripts.setup

demo: setup ## three streamed answers, then plain against speculative decoding
	@$(RUN) build_scripts.with_server --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) clients.demo $(ARGS)

# On TensorRT-LLM engines the container's own Triton serves, without an environment of ours.
PORTS = --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) --metrics-port $(METRICS_PORT)
ENGINES_ARGS = --target $(TARGET) --precision "$(PRECISION)" $(if $(DRY_RUN),--dry-run)

serve: $(if $(filter tensorrt_llm,$(ENGINE)),$(ENGINES_SETUP),setup) ## the server in the foreground (HTTP_PORT=, GRPC_PORT=, METRICS_PORT=)
	@exec $(if $(filter tensorrt_llm,$(ENGINE)),$(ENGINES_PYTHON) -m build_scripts.serve_engines $(ENGINES_ARGS),$(RUN) build_scripts.serve) $(PORTS) $(ARGS)

test: setup ## all tests, those against a running Triton included
	@$(RUN) pytest $(ARGS)

test-fast: setup ## the tests that need neither a server nor the embedded model
	@$(RUN) pytest -m "not server and not embedded and not export" $(ARGS)

test-container: setup ## what TensorRT-LLM's container runs, with its release of transformers
	@$(RUN) build_scripts.test_container $(ARGS)

fuzz: setup ## 10,000 bad requests to a server, and what they did to it (ARGS="--cases 1000 --seed 7")
	@$(RUN) tests.fuzz $(ARGS)

lint: setup ## ruff and mypy
	@$(RUN) ruff check
	@$(RUN) ruff format --check
	@$(RUN) mypy

load-test: setup ## perf_analyzer sweep with a table and a plot
	@$(RUN) build_scripts.with_server --http-port $(HTTP_PORT) --grpc-port $(GRPC_PORT) clients.load_test \
		--perf-analyzer "$$($(RUN) build_scripts.perf_analyzer --print-command)" $(ARGS)

bench-overhead: setup ## time outside the engines
	@$(RUN) benchmarks.overhead $(ARGS)

bench-engine: setup ## verify passes of each engine, and plain decoding beside other engines
	@$(RUN) benchmarks.engine $(ARGS)

exactness: setup ## every allowed combination of settings against plain decoding, hours; goes on where it was stopped
	@$(RUN) build_scripts.check_exactness $(ARGS)

# On a machine with a GPU. CUDA_PYTHON: one that has torch, transformers and pydantic-settings already.
CUDA_PYTHON ?= .venv/bin/python
CUDA_SETUP = $(if $(filter .venv%,$(CUDA_PYTHON)),setup)

test-cuda: $(CUDA_SETUP) ## the PyTorch engine on a GPU: noise, acceptance, exactness, leaks (CUDA_PYTHON=)
	@$(CUDA_PYTHON) -m pytest tests/cuda $(ARGS)

bench-cuda: $(CUDA_SETUP) ## steps, plain decoding and draft calls of the PyTorch engine on a GPU (CUDA_PYTHON=)
	@$(CUDA_PYTHON) -m benchmarks.cuda $(ARGS)

plan: setup ## memory and batch of a target on H20 (TARGET=qwen3-8b, PRECISION=fp8)
	@$(RUN) build_scripts.plan --target $(TARGET) --precision "$(PRECISION)" $(ARGS)

engines: $(ENGINES_SETUP) ## build TensorRT-LLM engines (TARGET=, PRECISION=, DRY_RUN=1)
	@$(ENGINES_PYTHON) -m build_scripts.engines $(ENGINES_ARGS) $(ARGS)

# Each step goes on where it was stopped. To write a corpus anew: python -m training.corpus.synthesize
train-drafters: setup ## the shipped drafters again, from the target and the shipped corpus (ARGS="--device cuda": minutes)
	@$(RUN) training.corpus.ship unpack train
	@$(RUN) training.corpus.ship unpack held_out
	@$(RUN) training.fit.train training/recipes/dfly.yaml $(ARGS)
	@$(RUN) training.fit.train training/recipes/mtp.yaml $(ARGS)
	@$(RUN) training.fit.publish dfly drafter_dfly
	@$(RUN) training.fit.publish mtp drafter_mtp
	@$(RUN) training.fit.sketch model_repository/drafter_dfly/1 model_repository/drafter_mtp/1
	@$(RUN) training.evaluate.eval_drafters --calibrate

eval-drafters: setup ## acceptance of the served drafters on held-out texts, and a plot
	@$(RUN) training.corpus.ship unpack held_out
	@$(RUN) training.evaluate.eval_drafters --plot .cache/drafters.png $(ARGS)

clean: ## remove the environment, the fetched model, cost tables and logs
	rm -rf .venv .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
