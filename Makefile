# make build   the executable, target/<triple>/release/ranklaunch
# make demo    a real two-node job on this machine
# make test    the whole suite; SUITE=NAME runs another one
# make lint    formatting, clippy and the links of the comments, warnings denied
# make docs    the generated pages anew; SUITE=snapshots, pictures or book for the rest
# make bench   speed and memory against their budgets
# make fuzz    everything that comes from outside, under libFuzzer
# make dist    the release for x86_64 and aarch64
#
# docs/guide/development.md describes all suites and their variables.
#
# Needs cargo, python3 and make. Everything else is installed here, through the
# ordinary package registries: torch goes into one virtual environment in the
# user's cache folder, unless a python that has it is found.

SHELL := /bin/sh
CARGO ?= cargo
TARGET := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
BINARY := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/$(TARGET)/release/ranklaunch
QUICK := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/$(TARGET)/demo/ranklaunch

# Flags from outside would replace those of .cargo/config.toml, which make the
# executable static.
unexport RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET

# Manifests of other projects, which tests/documents/lint/real.txt judges; without the folder that is skipped.
export RANKLAUNCH_MANIFESTS ?= $(wildcard $(CURDIR)/../shared/reviews/planning/manifests)

# Start-up scripts of other projects, for tests/plan/adopt; without the folder that is skipped.
export RANKLAUNCH_LAUNCH_SCRIPTS ?= $(wildcard $(CURDIR)/../shared/reviews/planning/launch-scripts)

# CustomResourceDefinitions of operators, for tests/platforms/kubernetes; what needs one that is missing is left out.
export RANKLAUNCH_CRDS ?= $(wildcard $(CURDIR)/../shared/crds)

# Labelled logs that `make judge` reads; without them it is skipped.
JUDGED := $(wildcard $(CURDIR)/../shared/reference/failures/given.jsonl)

DIST := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/dist

.PHONY: build demo test lint docs bench fuzz dist deaths gpu hunt immortal inventory judge judge-checkpoints judge-hangs judge-saves thorough

build: linker
	$(CARGO) build --release --locked

# Built without link-time optimization, which takes minutes, while torch is installed.
demo: linker
	@tests/python/find.sh torch numpy >/dev/null & installs=$$!; \
	$(if $(RANKLAUNCH),true,$(CARGO) build --locked --profile demo) && built=yes; \
	wait $$installs && [ -n "$$built" ] && PYTHON="$$(tests/python/find.sh torch numpy)" && \
	PYTHON="$$PYTHON" RANKLAUNCH="$(abspath $(or $(RANKLAUNCH),$(QUICK)))" tests/demo/demo.sh

test: $(if $(SUITE),$(SUITE:%=suite-%),suite-main)

# Suites that are asked for often, by their names alone.
deaths gpu hunt immortal inventory judge judge-checkpoints judge-hangs judge-saves thorough: %: suite-%

suite-main: linker tools
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" CARGO="$(CARGO)" tests/suite.sh $(ONLY)

# Only compiles it.
suite-build: linker
	$(CARGO) test --locked --workspace --no-run

# Software that tests take beside torch and the tools, each once: the versions of Python that the distribution
# lacks, older torches, coverage.
suite-installs: linker tools
	tests/python/find.sh torch numpy accelerate
	tests/python/releases.sh --install
	tests/python/beside_torch.sh coverage
	tests/python/older_torch.sh

# Suites that `.ci/run` leaves out because they repeat in another way what the main one holds: by hand, before a
# release and before a change to what it looks at. An hour and more; SHORT=1 takes a quarter of that.
suite-thorough: suite-release suite-report suite-warm suite-platforms suite-judge-hangs

# One test alone: PROGRAM="-p ranklaunch --test launch" NAME=hangs::…
suite-one: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked $(PROGRAM) -- --exact $(NAME)

RELEASE_LAUNCHES := $(or $(ONLY),$(if $(SHORT),rules:: trainjob:: logs:: nested::))
suite-release: linker tools $(if $(RANKLAUNCH),,build)
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_TEST_EXECUTABLE="$(abspath $(or $(RANKLAUNCH),$(BINARY)))" \
	env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- $(RELEASE_LAUNCHES)

WARM_FAULTS := $(or $(ONLY),$(if $(SHORT),kill:: restart:: torchrun::))
WARM_LAUNCHES := $(or $(ONLY),stacks:: hangs:: causes:: flight_records:: torchrun:: dump:: slow_ranks:: last_words:: inject::)
suite-warm: linker tools
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && export RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_TEST_WARM=auto && \
	env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test faults -- $(WARM_FAULTS) && \
	{ [ -n "$(ONLY)" ] || env -u RANKLAUNCH_TEST_WARM --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- --include-ignored warm::conformance::; } && \
	{ [ -n "$(SHORT)" ] || env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- $(WARM_LAUNCHES); }

lint: linker
	$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt || tests/packages.sh rustfmt
	$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy || tests/packages.sh rust-clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --no-deps --document-private-items


docs: $(if $(SUITE),$(SUITE:%=docs-%),docs-pages)

docs-pages: linker
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --test documents pages
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --package ranklaunch-settings the_profile_schema_is_written
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --test house the_architecture_begins_with_the_graph

docs-snapshots: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_BLESS=1 $(CARGO) test --locked --test documents snapshot

# Each is read in the diff: they change with the texts, and a little with the time that a job takes.
docs-pictures: $(if $(RANKLAUNCH),,build)
	@command -v cc tmux >/dev/null || tests/packages.sh gcc libc6-dev tmux
	docs/screenshots/record.py "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" docs/screenshots $(ONLY)

# mdbook is a program of minutes of building, so it is kept in the user's cache folder.
MDBOOK := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ranklaunch/mdbook
docs-book: linker
	@command -v mdbook >/dev/null || [ -x "$(MDBOOK)/bin/mdbook" ] || $(CARGO) install --locked --root "$(MDBOOK)" mdbook
	PATH="$$PATH:$(MDBOOK)/bin" docs/book.sh "$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/book"

suite-house: linker
	$(CARGO) test --locked --quiet --test house -- --include-ignored --nocapture

suite-soak: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_ROUNDS="$${SOAK_ROUNDS:-500}" \
	$(CARGO) test --locked --test hunt soak::direct -- --nocapture

suite-soak-torchrun: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_TORCHRUN_ROUNDS="$${SOAK_TORCHRUN_ROUNDS:-20}" \
	$(CARGO) test --locked --test hunt soak::torchrun -- --nocapture

suite-hunt: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" HUNT_SECONDS="$${HUNT_SECONDS:-600}" \
	$(CARGO) test --locked --test hunt a_long_hunt -- --ignored --nocapture

# One job over four of six launchers, whose ranks and nodes are killed DEATHS=100 times with ENGINE=direct, and how long the
# next attempt takes; RANKLAUNCH=… measures that executable. SEED repeats the choice.
suite-deaths: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	$(if $(RANKLAUNCH),RANKLAUNCH_TEST_EXECUTABLE="$(abspath $(RANKLAUNCH))") RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	$(CARGO) test --locked --test hunt job_dies_many_times -- --ignored --nocapture

# Six nodes that are lost, cut off, frozen and killed at random for MINUTES=30; SEED repeats the choice.
suite-immortal: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	$(CARGO) test --locked --test hunt job_outlives_its_nodes -- --ignored --nocapture

# How much of what other software can print when it fails the catalogue places, by component.
suite-inventory: linker
	$(CARGO) test --locked --package ranklaunch-diagnose inventory -- --nocapture

suite-judge: linker
	RANKLAUNCH_JUDGE="$${RANKLAUNCH_JUDGE:-$(JUDGED)}" \
	$(CARGO) test --locked --test judge -- --nocapture

suite-judge-hangs: $(if $(RANKLAUNCH),,build)
	tests/hangs/run.sh "$(abspath $(or $(RANKLAUNCH),$(BINARY)))"

# Jobs whose node 0 is lost, cut off or frozen, in a simulated network: SEEDS of them, from FIRST on.
suite-simulation: linker
	SEEDS="$${SEEDS:-100000}" $(CARGO) test --locked --release --config 'profile.release.lto="off"' \
	--config profile.release.codegen-units=16 -p ranklaunch-muster --lib election -- --nocapture

suite-judge-saves: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	env --default-signal=HUP,INT,QUIT,TERM \
	$(CARGO) test --locked --test faults saves::every_rank_saves_within_a_second_of_stop -- --ignored --nocapture

# KILLS=20 writers of each framework are killed, FULL=9 fill their disk, LOST=9 lose one of two ranks; JOBS=2 at a time,
# ONLY="dcp zero2" picks formats, SEED repeats.
suite-judge-checkpoints: linker
	tests/checkpoint/install.sh >/dev/null && \
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	$(CARGO) test --locked --test checkpoint -- --ignored --nocapture --test-threads 1

# Every suite runs, also after one that fails.
RELEASES ?= $(if $(SHORT),,trixie)
suite-platforms: $(if $(RANKLAUNCH),,build)
	@failed=; for suite in $(or $(ONLY:%=tests/platforms/%/run.sh),tests/platforms/*/run.sh); do \
	  case $$suite in */slurm/*|*/mpi/*) releases="$(RELEASES)";; *) releases=;; esac; \
	  for release in own $$releases; do \
	    RELEASE=$${release#own} "$$suite" "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" || failed="$$failed $$suite"; \
	  done; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

suite-report: $(if $(RANKLAUNCH),,build)
	tests/browser/run.sh "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" $(PICTURES)

suite-stacks: linker
	tests/python/releases.sh --install >/dev/null
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" $(CARGO) test --locked --test launch stacks::

# Not for CI: it installs qemu and fetches a kernel.
suite-vm: build
	tests/vm/run.sh "$(BINARY)"

suite-gpu: $(if $(RANKLAUNCH),,build)
	tests/gpu/real.sh "$(or $(RANKLAUNCH),$(BINARY))" $(GPU_OUT)

suite-size: build
	tests/size.sh "$(BINARY)"

dist: linker
	packaging/dist/build.sh "$(DIST)" $(ONLY)

suite-dist: linker
	tests/dist/run.sh "$(DIST)"
	tests/dist/first.sh "$(DIST)" "$$(tests/python/find.sh torch numpy)"

suite-dist-twice: linker
	tests/dist/twice.sh "$(DIST)-twice" $(ONLY)

# Not for CI: it wants a quiet machine and takes a minute.
bench: $(if $(SUITE),$(SUITE:%=bench-%),bench-all)

bench-all: linker
	$(if $(filter warm,$(ONLY)),tests/python/older_torch.sh >&2 && tests/python/beside_torch.sh transformers >&2)
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_BEFORE="$(abspath $(BEFORE))" RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	$(CARGO) bench --locked --no-fail-fast --bench budgets --bench muster -- $(ONLY)

bench-muster: linker
	$(CARGO) bench --locked --bench muster -- muster $(ONLY)

# Findings are kept in target/fuzz; the seeds are those of the tests.
fuzz: linker
	@command -v c++ >/dev/null || tests/packages.sh g++
	$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	CARGO="$(CARGO)" FUZZ_SECONDS="$(FUZZ_SECONDS)" FUZZ_RUNS="$(FUZZ_RUNS)" ONLY="$(ONLY)" tests/fuzz/run.sh

# Both tools are programs of cargo's own registry; building them takes minutes, once.
suite-audit: linker
	$(CARGO) deny --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-deny
	$(CARGO) machete --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-machete
	$(CARGO) deny --locked --workspace check bans licenses sources
	$(CARGO) machete

# Programs that single tests want, PROGRAM:PACKAGE. Where they cannot be installed those tests say that they were skipped.
TOOLS := prometheus:prometheus promtool:prometheus zsh:zsh fish:fish tini:tini tmux:tmux ip:iproute2 tc:iproute2 setpriv:util-linux openssl:openssl
tools:
	@missing=; for tool in $(TOOLS); do \
	  command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool#*:}"; \
	done; [ -z "$$missing" ] || tests/packages.sh $$missing || true

# rustc links with cc, and some tests compile a small library in C.
linker:
	@command -v cc >/dev/null || tests/packages.sh gcc libc6-dev
