# Targets: make help
.DEFAULT_GOAL := help
PYTHON ?= python3
DATA ?= synthetic
RUN := .venv/bin/python
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= true

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

install: .venv/installed ## make .venv and install s3bert with all it needs, at the tested versions

# torch comes first and alone: an index may offer a smaller build for exactly this version.
.venv/installed: pyproject.toml constraints.txt
	test -x $(RUN) || $(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt torch
	.venv/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# One thread: for so small a model two gain little, and stall one another as soon as anything else runs.
demo: install ## pretrain and finetune a tiny S3BERT in minutes; DATA=folder for real text and GLUE
	OMP_NUM_THREADS=1 $(RUN) scripts/demo.py --data $(DATA) --output_dir runs/demo

test: install ## the tests, but for those of make slow and those that need an accelerator (pytest -m gpu)
	$(RUN) -m pytest -n logical --maxprocesses 8

slow: install ## the tests that take minutes: a comparison killed at random points, compiled models
	$(RUN) -m pytest -m slow

torture: install ## the campaign of faults, fuzzing and load in its long form, about an hour; its table is in runs/torture
	$(RUN) -m pytest tests/torture -n 0 --torture runs/torture

check: install ## ruff: lint and format; mypy: the types of the public API
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

# pyproject.toml's lower bounds on the first Python, the newest releases on each. A machine without a GPU may name the torch of
# both: make compat OLDEST_TORCH=torch==2.13.0 NEWEST_TORCH=torch==2.13.0
PYTHONS := $(foreach version,3.11 3.12 3.13,$(if $(shell python$(version) --version 2>&1 | grep ^Python),$(version)))
OLDEST_TORCH ?= torch==2.8.0
NEWEST_TORCH ?= torch

compat: oldest-$(firstword $(PYTHONS)) $(PYTHONS:%=newest-%) ## the models' tests on the oldest and the newest allowed versions, on each Python there is

oldest-%: ; $(call run-compat,$(OLDEST_TORCH),--constraint oldest.txt)
newest-%: ; $(call run-compat,$(NEWEST_TORCH),--upgrade-strategy eager)

define run-compat
	test -x .compat/$@/bin/python || python$* -m venv .compat/$@
	.compat/$@/bin/pip install --quiet --upgrade $(1)
	.compat/$@/bin/pip install --quiet --upgrade $(2) $(1) --editable '.[dev]'
	.compat/$@/bin/python -m pytest -n logical --maxprocesses 8 tests/models tests/test_package.py
endef

docs: install ## the documentation site, in build/site; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build

clean: ## remove what runs and tools left
	rm -rf runs build dist .compat .pytest_cache .ruff_cache .mypy_cache .hypothesis

.PHONY: help install demo test slow torture check compat docs clean
