# Every target installs its dependencies, and is quick if they are installed.

CYCLES ?=
PACK ?= scenarios/quick.yaml
STATE ?= .state
EXPORTER_PORT ?= 10620
PROMETHEUS_PORT ?= 9690
NODE_EXPORTER_PORT ?= 9691
GRAFANA_PORT ?= 9692
ARGS ?=
ALL ?=
CHECK ?=
MOMENTS ?= 50
SEEDS ?= 1000
DAYS ?= 24
RUNS ?= 500
SEED ?=
SAMPLE ?= 100
MODULES ?= runner scheduler store
RECORDINGS ?=
DIST ?= dist
# Two processes more than cores: tests of guests and servers spend a fifth of their time waiting. A
# test file stays in one process; the slow files, which boot guests, come first.
PARALLEL ?= --numprocesses=$(shell echo $$(($$(nproc) + 2))) --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

# Compile a module once, not once for each of the hundreds of processes that a test run starts.
unexport PYTHONDONTWRITEBYTECODE

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Set-up steps build on each other, and two apt-get at once only wait for one another.
ifndef AT_ONCE
.NOTPARALLEL:
endif

BIN := .venv/bin

.PHONY: help run demo test test-core check check-types check-rules format generate screenshot bench bench-detection bench-advice crash hang sim e2e pve-replay guest lock
.PHONY: sim-fleet demo-fleet durability deb deb-test ansible-test site
.PHONY: debian13 sizes boards-test clean release venv venv-run compose-test mutate fuzz sbom e2e-ceph e2e-published e2e-fault e2e-host e2e-host-process e2e-power e2e-windows e2e-zfs
.PHONY: packages-run packages-test packages-guest packages-ceph packages-hostvm packages-hostprocess packages-debian13 packages-compose packages-windows

help: ## list the targets (needs nothing)
	@echo 'make TARGET [VARIABLE=value …]'
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'Variables of run: CYCLES=  PACK=$(PACK)  STATE=$(STATE)  ARGS=  EXPORTER_PORT=$(EXPORTER_PORT)'
	@echo '  PROMETHEUS_PORT=$(PROMETHEUS_PORT)  NODE_EXPORTER_PORT=$(NODE_EXPORTER_PORT)  GRAFANA_PORT=$(GRAFANA_PORT)'
	@echo 'Every target needs Debian 12 (Python 3.11) or Debian 13 (Python 3.13); other systems are not'
	@echo 'tested. Missing packages (scripts/packages.txt) are installed by apt when that works as root or'
	@echo 'with sudo without a password; otherwise one message says what to install.'

run: packages-run ## measure, with Prometheus and Grafana beside it (needs QEMU, Prometheus; Grafana if it is there)
	@scripts/venv run $(if $(ARGS),,guest)
	@exec scripts/run $(PACK:%=--pack %) --state '$(STATE)' $(if $(CYCLES),--cycles $(CYCLES)) \
		--exporter-port '$(EXPORTER_PORT)' --prometheus-port '$(PROMETHEUS_PORT)' \
		--node-exporter-port '$(NODE_EXPORTER_PORT)' --grafana-port '$(GRAFANA_PORT)' -- $(ARGS)

demo: packages-run $(if $(CHECK),venv,venv-run) ## open the stack on a simulated year; CHECK=1 asks every panel's queries instead (needs Prometheus; Grafana if it is there)
	@exec scripts/demo --state '$(STATE)-demo' $(if $(CHECK),--check) \
		--exporter-port '$(EXPORTER_PORT)' --prometheus-port '$(PROMETHEUS_PORT)' \
		--node-exporter-port '$(NODE_EXPORTER_PORT)' --grafana-port '$(GRAFANA_PORT)'

test: packages-test venv ## run all tests in parallel; ARGS= goes to pytest, PARALLEL= disables it (needs the programs of run, Chromium and a few tools)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-core: packages-test venv ## run the tests of the package pvebench with pvebench_lab and pvebench_fleet hidden
	PVEBENCH_TEST_CORE_ONLY=1 $(BIN)/python -m pytest $(PARALLEL) tests/unit tests/proxmox $(ARGS)

debian13: packages-debian13 ## run one cycle, check and test in a fresh Debian 13; ARGS= goes to pytest (needs root, mmdebstrap)
	@scripts/debian13 "make run CYCLES=1 && make check && make test ARGS='$(ARGS)'"

check: venv ## format, lint, types, import rules, generated files, destructive calls, readers (needs Python only)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync AT_ONCE=1 check-types check-rules

# mypy without a cache takes as long as all other checks together: two halves for two cores.
check-types:
	$(BIN)/mypy
	MYPYPATH=scripts/stack:tests $(BIN)/mypy scripts/stack/*.py
	MYPYPATH=exporter:grafana $(BIN)/mypy grafana/builder/*.py grafana/builder/boards/*.py

# The last one imports, and so compiles, every test module; `make test` need not do that in each process.
check-rules:
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports
	scripts/generate --check
	$(BIN)/python scripts/sizes.py --check
	$(BIN)/python -m pytest -q -n0 -k 'test_destructive_calls.py or test_readers.py'

sizes: venv ## print the sizes of code, tests, docs and boards beside their bounds (needs Python only)
	@$(BIN)/python scripts/sizes.py

format: venv ## format the code and apply the fixes of ruff (needs Python only)
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

generate: venv ## write the generated files: schemas, dashboards (needs Python only)
	scripts/generate

screenshot: packages-test venv ## render docs/images/page.png from a simulation (needs Chromium)
	PYTHONPATH=tests $(BIN)/python scripts/screenshot.py

boards-test: packages-test venv ## check every dashboard in a running Grafana; GRAFANA=http://… ARGS= (needs Chromium and a Grafana)
	@PYTHONPATH=tests $(BIN)/python tests/boards '$(GRAFANA)' $(ARGS)

bench: packages-run venv ## measure pvebench itself: bench/*.py (needs the programs of run)
	@shopt -s nullglob; found=(bench/[a-z]*.py); \
	if (($${#found[@]} == 0)); then echo 'pvebench: no benchmarks in bench/'; fi; \
	for file in "$${found[@]}"; do echo "== $$file"; $(BIN)/python "$$file" $(ARGS); done

bench-detection: venv ## measure detection next to other methods; SEED= ARGS= (needs Python; the package index for the others)
	@$(BIN)/python bench/detection.py $(if $(SEED),--seed $(SEED)) $(ARGS)

bench-advice: venv ## simulated clusters with known truth: advice and canary gate; ARGS=--seeds 50 (needs Python)
	@$(BIN)/python bench/advice.py $(ARGS)

durability: packages-run venv ## measure which writes survive a killed QEMU, for the table of docs/durability.md (needs the programs of run)
	mkdir -p .state
	$(BIN)/pvebench durability --state .state/durability --format json >.state/durability.json
	mv .state/durability.json tests/golden/durability/results.json
	scripts/generate

crash: packages-run venv ## kill -9 pvebench, QEMU, both or a container at MOMENTS random moments of real cycles; ARGS=--node a container on a node, or the program there, ARGS=--short only VMs on files, ARGS=--operations in operations (needs the programs of run, for containers root and lxc, for a node sshd)
	$(BIN)/python tests/crash/real.py $(MOMENTS) $(SEED) $(ARGS)

hang: packages-run venv ## count hung disks in RUNS short runs with hot-plug between; ARGS=--single-cpu as it was (needs the programs of run)
	$(BIN)/python tests/e2e/hang.py $(RUNS) $(ARGS)

sim: venv ## run SEEDS fault and crash schedules in simulated time; ARGS='--mutant without-journal' makes them fail (needs Python only)
	$(BIN)/python tests/crash/simulate.py $(SEEDS) $(ARGS)

sim-fleet: venv ## run SEEDS fault schedules of a site, its clone and the hub; ARGS='--mutant no-undo' makes them fail (needs Python only)
	$(BIN)/python tests/crash/fleet.py $(SEEDS) $(ARGS)

demo-fleet: packages-test venv ## simulate DAYS of twelve sites and their hub, with a kill, a restore, a clone and one regression; ARGS=--stay serves its page (needs PostgreSQL)
	$(BIN)/python scripts/stack/demo_fleet.py --days $(DAYS) $(ARGS)

mutate: venv ## break SAMPLE places in the packages MODULES, in a copy, and list where no test notices; SEED= ARGS= (needs Python only)
	$(BIN)/python tests/mutation/mutate.py --packages '$(MODULES)' --sample $(SAMPLE) $(if $(SEED),--seed $(SEED)) $(ARGS)

fuzz: venv ## fuzz the parsers of external data, guided by coverage; ARGS='SECONDS TARGET…', of each (needs x86-64; the package index once)
	@cmp -s requirements-fuzz.lock .venv/fuzz/lock || { \
		$(BIN)/python -m pip --disable-pip-version-check --quiet install --require-hashes \
			--upgrade --target .venv/fuzz -r requirements-fuzz.lock && cp requirements-fuzz.lock .venv/fuzz/lock; }
	@PYTHONPATH=tests:.venv/fuzz nice -n 19 $(BIN)/python -m fuzz $(ARGS)

sbom: venv-run ## write SBOM (CycloneDX) and licences of the lock into build/sbom, ask for known vulnerabilities (needs the package index)
	@cmp -s requirements-sbom.lock .venv/sbom/lock || { \
		$(BIN)/python -m pip --disable-pip-version-check --quiet install --require-hashes \
			--upgrade --target .venv/sbom -r requirements-sbom.lock && cp requirements-sbom.lock .venv/sbom/lock; }
	@$(BIN)/python scripts/sbom .venv/sbom build/sbom

e2e: packages-run venv ## every option of the lab, an upgrade that costs speed, a test cluster of Proxmox VE 8 and 9
	@set -e; for script in lab-all-options lab-upgrade lab-gate proxmox node-durability; do tests/e2e/$$script $(ARGS); done

e2e-published: packages-run venv ## the rows of the published packs that the lab can run, small; ARGS='PACK…' (needs root for loop devices)
	@tests/e2e/published $(ARGS)

e2e-ceph: packages-run packages-ceph venv ## rbd on a real Ceph cluster on this machine: cache modes, kills (needs root, Debian's Ceph)
	@tests/e2e/ceph $(ARGS)

e2e-fault: packages-run packages-test packages-ceph venv ## a guest's storage paused, slowed, killed under load (needs root, for a real NFS server; Debian's Ceph)
	@tests/e2e/under-fault $(ARGS)

e2e-host: packages-run packages-hostvm venv ## host rows on dm-cache, md, LVM, CIFS, ZFS … in a VM that plays the host; ARGS='PACK… small drive options' (needs root)
	@tests/e2e/host-vm $(ARGS)

e2e-zfs: packages-run packages-hostvm venv ## guests on zvols and files on ZFS, exported by a VM, beside its bare disk; ARGS='zvol zfs-ssd-cache options' (needs root)
	@tests/e2e/zfs $(ARGS)

e2e-host-process: packages-run packages-hostprocess venv ## guest rows on dm-cache, md, LVM, CIFS, disks that fail or seek, in a process that plays the host; ARGS='PACK… STORAGE… faults hdd' (needs User-mode Linux)
	@tests/e2e/host-process $(ARGS)

e2e-power: packages-run packages-hostprocess venv ## SIGKILL a host with its page cache while QEMU writes, on LVM, xfs, btrfs; ARGS='STORAGE…' (needs User-mode Linux)
	@tests/e2e/power-loss $(ARGS)

e2e-windows: packages-windows venv ## the client of Windows guests against the real fio.exe and qemu-ga.exe, built for Wine; records their transcripts (needs apt sources)
	@tests/windows/build
	@PVEBENCH_RECORD=1 $(BIN)/python -m pytest -q -n0 tests/windows tests/windows/limits_of_the_agent.py $(ARGS)

compose-test: packages-compose venv ## start compose.yaml and check the stack; ARGS= (needs Docker, root)
	@$(BIN)/python tests/compose $(ARGS)

pve-replay: venv ## replay recorded requests of a real Proxmox API against the API of the tests; RECORDINGS= (needs openssl)
	PYTHONPATH=tests $(BIN)/python -m pve.replay $(or $(RECORDINGS),$(wildcard ../shared/pve/recordings-*.jsonl.gz),$(wildcard tests/pve/recordings-*.jsonl))

guest: packages-guest venv-run ## build the guest image (needs apt and xorriso)
	$(BIN)/pvebench guest build $(ARGS)

lock: venv-run ## resolve pyproject.toml into the requirements locks; ARGS=--upgrade (needs the package index)
	scripts/lock $(ARGS)

PUBLISH = $(if $(KEY),--key '$(KEY)') $(if $(URL),--url '$(URL)') $(if $(EARLIER),--earlier '$(EARLIER)') \
	$(if $(filter no,$(IMAGES)),--no-image)
release: venv-run ## build the release files of the commit into DIST, twice, and compare them; KEY= signs, see docs/releasing.md (needs git, dpkg-deb, apt-utils, gpg, the package index; Docker, or IMAGES=no)
	@$(BIN)/python scripts/publish.py '$(DIST)' --check $(PUBLISH)
	@echo 'pvebench: builds everything twice, which takes some minutes'
	scripts/release '$(DIST)'
	@$(MAKE) --no-print-directory deb ARGS=--twice
	@$(BIN)/python scripts/release_page.py '$(DIST)' $(if $(KEY),'$(URL)')
	@rm -rf build/sbom
	-@$(MAKE) --no-print-directory sbom
	@$(BIN)/python scripts/publish.py '$(DIST)' $(PUBLISH)

deb: venv-run ## build the packages of Debian 12 and 13 of the wheel in DIST; ARGS=--twice (needs dpkg-deb, the package index)
	@for release in 12 13; do \
		$(BIN)/python packaging/deb/build.py --wheel "$$(ls '$(DIST)'/pvebench-*.whl)" \
			--release $$release --output '$(DIST)' $(ARGS); done
	@cd '$(DIST)' && sha256sum -- $$(ls | grep -vxE 'SHA256SUMS|RELEASE.md') | tee SHA256SUMS

deb-test: venv ## install, upgrade, remove and purge the packages in DIST in booted Debians (needs root, mmdebstrap, systemd-container)
	@$(BIN)/python tests/deb --packages '$(DIST)' $(ARGS)

ansible-test: venv ## lint the role; ARGS='HOST DEB' plays it there as well, twice (needs the package index)
	@packaging/ansible/check $(ARGS)

site: venv-run ## build the documentation site in build/site (needs the package index once)
	@cmp -s requirements-site.lock .venv/site/lock || { \
		$(BIN)/python -m pip --disable-pip-version-check --quiet install --require-hashes \
			--upgrade --target .venv/site -r requirements-site.lock && cp requirements-site.lock .venv/site/lock; }
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/site $(BIN)/python -m mkdocs --quiet build --strict --clean
	@! grep -rhoE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//[^ >]*' --include='*.html' build/site || \
		{ echo 'pvebench: pages of the site fetch something from elsewhere' >&2; exit 1; }
	@echo 'pvebench: to read it: python3 -m http.server --bind 127.0.0.1 --directory build/site'

clean: ## remove .venv, caches, build products; ALL=1 also the results of run and demo in STATE (needs nothing)
	$(if $(ALL),@[ ! -d '$(STATE)-demo' ] || scripts/clean '$(STATE)-demo' --all)
	@scripts/clean '$(STATE)' $(if $(ALL),--all)

# What runs pvebench, and what checks and tests it as well.
venv-run:
	@scripts/venv run

venv:
	@scripts/venv dev

# The guest image is put together from packages that apt fetches, hence --lists.
packages-run packages-test packages-guest packages-ceph packages-hostvm packages-hostprocess packages-debian13 packages-compose packages-windows: packages-%:
	@scripts/packages --lists $*
