# Targets for people and for CI; `make help` lists them.

.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
SEEDS   ?= 500
MINUTES ?= 2
NODES   ?= 14
STORES  ?= sqlite,postgresql,mysql
WORKERS ?= 2

# Nodes of tests and demonstrations are processes: without cached bytecode, each would compile holdfast anew.
unexport PYTHONDONTWRITEBYTECODE

# Folders that exist now; pytest refuses to start for one that does not.
FAST_TESTS   = $(wildcard tests/unit tests/contracts tests/simulation tests/fuzz)
# The longest first, so that no worker is left with one of them at the end; a file's tests share their servers.
SERVER_TESTS = --dist loadfile --no-loadscope-reorder $(wildcard tests/e2e tests/chaos tests/soak tests/servers tests/spark tests/web)

.PHONY: help setup connector lock lint style types imports servers class-data test reference screenshots model demo simulate fuzz soak chaos-archive chaos-functions chaos-reindex bench clean

help: ## Show this list
	@grep -hE '^[a-zA-Z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-zA-Z%-]+):.*## /\1\t/' \
		| awk -F '\t' '{printf "  %-12s %s\n", $$1, $$2}'

setup: $(READY) connector ## Create .venv from requirements.lock, with Java and Spark's Kafka connector

# A python3.11 on PATH can be a version manager's shim that refuses to run, so each candidate is tried.
define FIND_PYTHON
for python in python3.11 python3; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then break; fi; python=; \
done; \
if [ -z "$$python" ]; then echo "holdfast needs Python 3.11 or later on PATH" >&2; exit 1; fi
endef

# Debian keeps venv in a package of its own; only root can add it.
define MAKE_VENV
if ! $$python -m venv $(VENV); then \
	rm -rf $(VENV); \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -q && apt-get install -y -q python3-venv && $$python -m venv $(VENV); \
	else \
		echo "python has no venv module: install python3-venv" >&2; exit 1; \
	fi; \
fi
endef

$(READY): requirements.lock pyproject.toml
	@set -e; if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then $(FIND_PYTHON); $(MAKE_VENV); fi
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@$(BIN)/python -c 'from holdfast.spark.java import describe_java; print("Java:", describe_java())'
	@touch $@

# Apart from the rest: only pipelines that read Kafka need it. Maven finds a repository that only its own settings name.
connector: $(READY)
	@$(BIN)/holdfast connector install kafka || sh scripts/fetch_jars.sh spark-kafka $(VENV)/share/holdfast/jars

lock: | $(READY) ## Resolve requirements.lock anew from pyproject.toml
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --fork-strategy fewest \
		--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		--extra dev pyproject.toml -o requirements.lock

lint: style types imports ## Check style, types and import rules

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports --no-logo

servers: ## Install the servers that tests start for themselves, where they are missing
	sh scripts/install_servers.sh

class-data: connector servers ## Record the classes that Spark, Kafka and OpenSearch load, so that tests start them quickly
	$(BIN)/python -m tests.servers.class_data

test: connector servers ## Lint, then run every test
	@$(MAKE) --no-print-directory --jobs=$(WORKERS) --output-sync=target lint class-data
	$(BIN)/python -m pytest -q -n $(WORKERS) $(FAST_TESTS)
	$(BIN)/python -m pytest -q -n $(WORKERS) $(SERVER_TESTS)

reference: $(READY) ## Write docs/reference anew from the code
	$(BIN)/python scripts/make_reference.py

screenshots: $(READY) ## Make the pictures of the dashboard in docs/pictures anew (needs Chromium)
	$(BIN)/python scripts/make_screenshots.py

demo: $(READY) ## Run the demonstration; JOB=function or JOB=reindex: these; STORE=object: leases without any database
	$(BIN)/python -m examples.$(or $(JOB),demo).demo $(STORE)

model: ## Check the TLA+ model of the protocol (needs Java and Maven)
	bash scripts/model.sh small

simulate: $(READY) ## Run the simulator on SEEDS seeds (default 500)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

fuzz: $(READY) ## Give inputs that are almost valid to every decoder for MINUTES (default 2)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m hypothesis --hypothesis-profile=fuzz tests/unit tests/contracts

soak: $(READY) servers ## Run NODES light nodes on each of STORES under faults for MINUTES (default 2)
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --nodes $(NODES) --stores $(STORES)

chaos-functions: $(READY) servers ## Functions on three nodes and Kafka, which are killed, stopped and replaced for MINUTES, 20 times at least
	$(BIN)/python -m tests.chaos.functions --kafka --minutes $(MINUTES)

chaos-archive: $(READY) connector servers ## Three nodes, real Kafka, S3 and PostgreSQL, and faults for MINUTES (default 2)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

chaos-reindex: $(READY) servers ## Three nodes reindex 300,000 rows of PostgreSQL and MariaDB under faults for MINUTES each (default 2)
	$(BIN)/python -m tests.chaos.reindex --minutes $(MINUTES)

bench: $(READY) ## Run every benchmark
	$(BIN)/python benchmarks/run.py all

bench-%: $(READY) ## Run one benchmark, e.g. bench-claims, or CASES of it, e.g. bench-reindex CASES="race sums"
	$(BIN)/python benchmarks/run.py $* $(CASES)

clean: ## Remove .venv, build/ and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
