# Every target does its own set-up and may be repeated. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

PYTHON := .venv/bin/python
STAMP := .venv/.complete

# Settings of `make run`; each may be given on the command line.
CYCLES ?=
PACK ?= scenarios/quick.yaml
STATE ?= .state
EXPORTER_PORT ?= 9620
PROMETHEUS_PORT ?= 9690
NODE_EXPORTER_PORT ?= 9691
GRAFANA_PORT ?= 9692
ARGS ?=
export CYCLES PACK STATE EXPORTER_PORT PROMETHEUS_PORT NODE_EXPORTER_PORT GRAFANA_PORT

.PHONY: help
help: ## List the targets (needs: nothing)
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

.PHONY: run
run: $(STAMP) ## Measure in the local QEMU lab, with Prometheus beside it (CYCLES=1 ends by itself)
	@scripts/packages run
	exec scripts/run $(ARGS)

.PHONY: test
test: $(STAMP) ## Run all tests: real QEMU, fio, Prometheus, Chromium (ARGS= goes to pytest)
	@scripts/packages run test
	$(PYTHON) -m pytest $(ARGS)

.PHONY: check
check: $(STAMP) ## Format, lint, types, imports, generated files
	@.venv/bin/ruff format --check -q .
	.venv/bin/ruff check -q .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache | tail -n 1
	scripts/generate --check

.PHONY: format
format: $(STAMP) ## Format the code and mend what the linter can mend
	@.venv/bin/ruff format -q .
	.venv/bin/ruff check -q --fix .

.PHONY: generate
generate: $(STAMP) ## Write the generated files: dashboards, JSON schemas, docs/metrics.md
	@scripts/generate

.PHONY: bench
bench: $(STAMP) ## Measure pvebench itself; each bench prints ratios
	@scripts/packages run
	for bench in bench/*.py; do echo "== $$bench"; $(PYTHON) "$$bench"; done

.PHONY: guest
guest: $(STAMP) ## Build the guest image (make run does it when needed)
	@scripts/packages run
	.venv/bin/pvebench guest build

.PHONY: lock
lock: ## Compile the requirement locks anew (needs: uv)
	@compile="uv pip compile -q --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-annotate"
	$$compile -o requirements.lock pyproject.toml
	$$compile -c requirements.lock --group dev -o requirements-dev.lock pyproject.toml

.PHONY: clean
clean: ## Remove .venv and caches; results stay unless ALL=1
	@rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache exporter/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	if [ "$(ALL)" = 1 ]; then rm -rf "$(STATE)"; elif [ -d "$(STATE)" ]; then
		echo "results are kept in $(STATE); make clean ALL=1 removes them too"; fi

# The stamp is written last: a venv that was cut off half-way is made again.
$(STAMP): requirements-dev.lock pyproject.toml
	@scripts/venv
	touch $@
