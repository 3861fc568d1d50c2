# quickstart | test | test-slow | test-backends | lint | bench. Each sets up what it needs; only Python has to be there.
PYTHON ?= python3
VENV ?= .venv
# Megatron-Core, vLLM, TransferQueue, TRL, verl and what they bring along, 3 GB, beside the packages of $(VENV).
BACKENDS ?= .venv-backends
# Which build of PyTorch to fetch: cpu, auto (by the GPU of this machine), cu126, ...
TORCH_BACKEND ?= cpu

# Without bytecode every process would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE

# A folder with the CPU build of PyTorch, if this machine has one; pip's own settings name it.
WHEELS ?= $(or $(PIP_FIND_LINKS),$(shell $(PYTHON) -m pip config get global.find-links 2>/dev/null))
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
comma := ,
empty :=
space := $(empty) $(empty)
ifneq ($(and $(filter cpu,$(TORCH_BACKEND)),$(wildcard $(addsuffix /torch-$(TORCH)+cpu-*,$(WHEELS)))),)
  export UV_FIND_LINKS := $(subst $(space),$(comma),$(strip $(WHEELS)))
  TORCH_FROM :=
else
  TORCH_FROM := --torch-backend $(TORCH_BACKEND)
endif

INSTALL = $(VENV)/bin/uv pip install --python $(VENV)/bin/python $(TORCH_FROM) -c constraints.txt -b constraints.txt
PROJECTS := pyproject.toml $(wildcard plugins/*/pyproject.toml)
EDITABLE := -e . $(patsubst %/pyproject.toml,-e %,$(wildcard plugins/*/pyproject.toml))
PYTEST_OF = OMP_NUM_THREADS=1 GOMP_SPINCOUNT=0 $(1)/bin/pytest -n 2 --dist loadfile
PYTEST = $(call PYTEST_OF,$(VENV))

.PHONY: quickstart test test-slow test-backends lint bench

quickstart: $(VENV)/.quickstart
	$(VENV)/bin/relax train examples/quickstart/text.yaml $(if $(SEED),--set seed=$(SEED))

test: $(VENV)/.develop
	$(PYTEST) -m "not slow"

test-slow: $(VENV)/.develop
	$(PYTEST) -m slow

test-backends: $(BACKENDS)/.backends
	$(call PYTEST_OF,$(BACKENDS)) plugins/relax_algos/tests/parity
	$(call PYTEST_OF,$(BACKENDS)) plugins/relax_megatron
	$(call PYTEST_OF,$(BACKENDS)) plugins/relax_vllm
	$(call PYTEST_OF,$(BACKENDS)) plugins/relax_transferqueue

lint: $(VENV)/.develop
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

bench: $(VENV)/.bench
	$(VENV)/bin/python benchmarks/grpo_step.py
	$(VENV)/bin/python benchmarks/generation.py
	$(VENV)/bin/python benchmarks/overlap.py
	$(VENV)/bin/python benchmarks/weight_sync.py
	$(VENV)/bin/python benchmarks/serve_overlap.py --only "train-bound, colocate"
	$(VENV)/bin/python benchmarks/serve_overlap.py --only "train-bound, max_staleness 2"
	$(VENV)/bin/python benchmarks/transport.py --short
	$(VENV)/bin/python benchmarks/encoders.py

$(VENV)/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Relax needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q uv==0.13.9

$(VENV)/.quickstart: $(VENV)/bin/uv $(PROJECTS) constraints.txt
	$(INSTALL) $(EDITABLE)
	touch $@

# What the data of examples are made with is beside the packages: among them, transformers would load scikit-learn into
# every process that has a model.
$(VENV)/.develop: $(VENV)/.quickstart
	$(INSTALL) -e '.[dev,models,parquet,tasks]'
	$(INSTALL) --target $(VENV)/examples scikit-learn
	touch $@

$(VENV)/.bench: $(VENV)/.quickstart
	$(INSTALL) -e '.[bench]'
	touch $@

# Megatron-Core declares Python 3.12 and runs on 3.11; only pip can be told so.
$(BACKENDS)/.backends: $(VENV)/bin/uv $(PROJECTS) constraints.txt excludes.txt
	$(PYTHON) -m venv $(BACKENDS)
	$(VENV)/bin/uv pip install --python $(BACKENDS)/bin/python $(TORCH_FROM) -c constraints.txt -b constraints.txt \
		--excludes excludes.txt $(EDITABLE) -e '.[test]' -e 'plugins/relax_vllm[backend]' \
		-e 'plugins/relax_transferqueue[backend]' \
		-e 'plugins/relax_algos[parity]' triton psutil pytest-xdist
	$(VENV)/bin/uv pip install --python $(BACKENDS)/bin/python --no-deps -c constraints.txt verl
	$(BACKENDS)/bin/python -m pip install -q --no-deps --ignore-requires-python -c constraints.txt megatron-core
	touch $@
