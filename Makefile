# make demo   build quickly, then launch a real two-node job on this machine; RANKLAUNCH=FILE takes an executable that
#             is built already
# make test   the whole suite; RANKLAUNCH_TEST_NO_SKIP=1 fails where a part would be skipped, ONLY="hangs:: stop::" picks
#             tests; with cargo-nextest all suites run side by side
# make test-installs   only installs what the suite takes beside torch; make test-build only compiles it
# make thorough   what `.ci/run` leaves out, SHORT=1 in short: test-release test-report test-warm test-platforms judge-hangs
# make lint   formatting and clippy, warnings denied
# make rustdoc   what the comments of the source link to, warnings denied
# make docs   docs/ anew from the table of ids, and the schema of profiles from the table of settings; `make test` fails
#             where they differ
# make bless  tests/snapshots anew from what is printed now, to be read in the diff
# make screenshots   the pictures of the documentation, as a terminal shows them; ONLY="run check" picks some,
#             RANKLAUNCH=FILE takes an executable that is built already
# make book   the README and docs/ as one book, target/book/html; installs mdbook
# make house  how the source is divided: lines, files and circles of imports of each room
# make bench  speed and memory against the budgets; ONLY="start memory" picks some; BEFORE=FILE is
#             an executable of an earlier commit, which is measured beside this one; ONLY=warm measures older
#             torches and torch with transformers too, which it installs
# make bench-muster   only its musters of 10 to 10 000 simulated nodes; ONLY="1000 encrypted" picks some
# make test-platforms   the platforms' real software, installed where it is missing; ONLY="slurm mpi"
#             picks folders of tests/platforms, SHORT=1 runs a form of some minutes,
#             RANKLAUNCH=FILE takes an executable that is built already. Slurm and MPI: the packages of this
#             machine, and those of RELEASES, folders that debootstrap makes; with SHORT=1 only the former
# make test-release   the suite launch with the release executable, whose dependencies have fewer features than those of
#             the tests; SHORT=1 runs the form of .ci/run, of a minute, ONLY="rules:: logs::" picks tests,
#             RANKLAUNCH=FILE takes an executable that is built already
# make test-warm   faults and endings with ranks that are forked from a warmed interpreter; SHORT=1 runs a form of
#             half a minute, ONLY="stop:: causes::" picks tests of the suites faults and launch
# make test-report   what a real headless browser makes of the reports: DOM, keyboard, contrast, no request; PICTURES=DIR
#             keeps pictures of them, RANKLAUNCH=FILE takes an executable that is built already
# make test-stacks   the stacks of every CPython from 3.8 to 3.15; as root it makes a Debian root for those that are missing
# make vm     control groups of version 2 and older kernels, in an emulated machine (ten minutes)
# make fuzz   everything that comes from outside, under libFuzzer: variables, profiles, manifests, logs, frames, requests,
#             keys, memory of ranks; FUZZ_SECONDS=60 or FUZZ_RUNS=… for each target, ONLY="http stacks" picks some
# make soak   500 jobs of which any one process is killed at any moment; SOAK_SEED=… repeats a run
# make soak-torchrun   20 of them below a real torchrun
# make hunt   ten minutes of random faults against random jobs of up to four nodes and all engines;
#             HUNT_SECONDS=…, HUNT_SEED=… repeats a run and HUNT_ROUND=… one of its rounds
# make judge  how often explain names the right cause: RANKLAUNCH_JUDGE names labelled logs
# make judge-hangs   how often a hang of real torch is judged right, and that no slow run is called one; SHORT=1 runs
#             a form of two minutes, ONLY="checkpoint living" picks kinds, SEEDS="1 2" seeds of 1 to 20;
#             tests/hangs/run.sh has all settings, RANKLAUNCH=FILE takes an executable that is built already
# make judge-saves   100 random stops of jobs whose ranks need their helpers to save: each has saved; STOPS=…, and
#             SEED=… repeats a run
# make gpu    what is said of this machine's NVIDIA GPUs beside nvidia-smi and torch, and a job on one;
#             RANKLAUNCH=FILE takes an executable that is built already, GPU_OUT=DIR keeps the outputs
# make size   the release executable is static and small
# make dist   the release in target/dist: executables, packages, images, SBOMs, sums; ONLY=x86_64 picks architectures
# make dist-test   whether that release keeps what packaging/README.md promises
# make dist-twice  the release twice, in two folders: the same bytes
# make audit  licences, sources and unused dependencies, as tests/documents/dependencies.rs reads them as well
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

# CustomResourceDefinitions of operators, for tests/platforms/kubernetes; what needs one that is missing is left out.
export RANKLAUNCH_CRDS ?= $(wildcard $(CURDIR)/../shared/crds)

# Labelled logs that `make judge` reads; without them it is skipped.
JUDGED := $(wildcard $(CURDIR)/../shared/reference/failures/given.jsonl)

DIST := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/dist

.PHONY: dist dist-test dist-twice screenshots build demo gpu vm test test-build test-installs thorough test-one test-warm test-platforms test-release test-report test-stacks lint rustdoc docs bless house bench bench-muster fuzz hunt judge judge-hangs judge-saves soak soak-torchrun size audit linker tools

build: linker
	$(CARGO) build --release --locked

# Built without link-time optimization, which takes minutes, while torch is installed.
demo: linker
	@tests/python/find.sh torch numpy >/dev/null & installs=$$!; \
	$(if $(RANKLAUNCH),true,$(CARGO) build --locked --profile demo) && built=yes; \
	wait $$installs && [ -n "$$built" ] && PYTHON="$$(tests/python/find.sh torch numpy)" && \
	PYTHON="$$PYTHON" RANKLAUNCH="$(abspath $(or $(RANKLAUNCH),$(QUICK)))" tests/demo/demo.sh

test: linker tools
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" CARGO="$(CARGO)" tests/suite.sh $(ONLY)

# Only compiles it.
test-build: linker
	$(CARGO) test --locked --workspace --no-run

# What tests take beside torch and the tools, each once: the versions of Python that the distribution lacks, older
# torches, coverage.
test-installs: linker tools
	tests/python/find.sh torch numpy accelerate
	tests/python/releases.sh --install
	tests/python/beside_torch.sh coverage
	tests/python/older_torch.sh

# What `.ci/run` leaves out because it repeats in another way what the suite holds: by hand, before a release and before
# a change to what it looks at. An hour and more; SHORT=1 takes a quarter of that.
thorough: test-release test-report test-warm test-platforms judge-hangs

# One test alone: PROGRAM="-p ranklaunch --test launch" NAME=hangs::…
test-one: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked $(PROGRAM) -- --exact $(NAME)

RELEASE_LAUNCHES := $(or $(ONLY),$(if $(SHORT),rules:: trainjob:: logs:: nested::))
test-release: linker tools $(if $(RANKLAUNCH),,build)
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_TEST_EXECUTABLE="$(abspath $(or $(RANKLAUNCH),$(BINARY)))" \
	env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- $(RELEASE_LAUNCHES)

WARM_FAULTS := $(or $(ONLY),$(if $(SHORT),kill:: restart:: torchrun::))
WARM_LAUNCHES := $(or $(ONLY),stacks:: hangs:: causes:: flight_records:: torchrun:: dump:: slow_ranks:: last_words:: inject::)
test-warm: linker tools
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && export RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_TEST_WARM=auto && \
	env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test faults -- $(WARM_FAULTS) && \
	{ [ -n "$(ONLY)" ] || env -u RANKLAUNCH_TEST_WARM --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- --include-ignored warm::conformance::; } && \
	{ [ -n "$(SHORT)" ] || env --default-signal=HUP,INT,QUIT,TERM $(CARGO) test --locked --test launch -- $(WARM_LAUNCHES); }

lint: linker
	$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt || tests/packages.sh rustfmt
	$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy || tests/packages.sh rust-clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

rustdoc: linker
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc --locked --workspace --no-deps --document-private-items

docs: linker
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --test documents pages
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --package ranklaunch-settings the_profile_schema_is_written
	RANKLAUNCH_WRITE_DOCS=1 $(CARGO) test --locked --test house the_architecture_begins_with_the_graph

bless: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" RANKLAUNCH_BLESS=1 $(CARGO) test --locked --test documents reads_as_it_was_read

# Each is read in the diff: they change with the texts, and a little with the time that a job takes.
screenshots: $(if $(RANKLAUNCH),,build)
	@command -v cc tmux >/dev/null || tests/packages.sh gcc libc6-dev tmux
	docs/screenshots/record.py "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" docs/screenshots $(ONLY)

# mdbook is a program of minutes of building, so it is kept in the user's cache folder.
MDBOOK := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ranklaunch/mdbook
.PHONY: book
book: linker
	@command -v mdbook >/dev/null || [ -x "$(MDBOOK)/bin/mdbook" ] || $(CARGO) install --locked --root "$(MDBOOK)" mdbook
	PATH="$$PATH:$(MDBOOK)/bin" docs/book.sh "$(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/book"

house: linker
	$(CARGO) test --locked --quiet --test house -- --include-ignored --nocapture

soak: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_ROUNDS="$${SOAK_ROUNDS:-500}" \
	$(CARGO) test --locked --test hunt soak::direct -- --nocapture

soak-torchrun: linker
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_TORCHRUN_ROUNDS="$${SOAK_TORCHRUN_ROUNDS:-20}" \
	$(CARGO) test --locked --test hunt soak::torchrun -- --nocapture

hunt: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" HUNT_SECONDS="$${HUNT_SECONDS:-600}" \
	$(CARGO) test --locked --test hunt a_long_hunt -- --ignored --nocapture

judge: linker
	RANKLAUNCH_JUDGE="$${RANKLAUNCH_JUDGE:-$(JUDGED)}" \
	$(CARGO) test --locked --test judge -- --nocapture

judge-hangs: $(if $(RANKLAUNCH),,build)
	tests/hangs/run.sh "$(abspath $(or $(RANKLAUNCH),$(BINARY)))"

judge-saves: linker
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	env --default-signal=HUP,INT,QUIT,TERM \
	$(CARGO) test --locked --test faults saves::many_stops -- --ignored --nocapture

# Every suite runs, also after one that fails.
RELEASES ?= $(if $(SHORT),,trixie)
test-platforms: $(if $(RANKLAUNCH),,build)
	@failed=; for suite in $(or $(ONLY:%=tests/platforms/%/run.sh),tests/platforms/*/run.sh); do \
	  case $$suite in */slurm/*|*/mpi/*) releases="$(RELEASES)";; *) releases=;; esac; \
	  for release in own $$releases; do \
	    RELEASE=$${release#own} "$$suite" "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" || failed="$$failed $$suite"; \
	  done; \
	done; if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

test-report: $(if $(RANKLAUNCH),,build)
	tests/browser/run.sh "$(abspath $(or $(RANKLAUNCH),$(BINARY)))" $(PICTURES)

test-stacks: linker
	tests/python/releases.sh --install >/dev/null
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" $(CARGO) test --locked --test launch stacks::

# Not for CI: it installs qemu and fetches a kernel.
vm: build
	tests/vm/run.sh "$(BINARY)"

gpu: $(if $(RANKLAUNCH),,build)
	tests/gpu/real.sh "$(or $(RANKLAUNCH),$(BINARY))" $(GPU_OUT)

size: build
	tests/size.sh "$(BINARY)"

dist: linker
	packaging/dist/build.sh "$(DIST)" $(ONLY)

dist-test: linker
	tests/dist/run.sh "$(DIST)"

dist-twice: linker
	tests/dist/twice.sh "$(DIST)-twice" $(ONLY)

# Not for CI: it wants a quiet machine and takes a minute.
bench: linker
	$(if $(filter warm,$(ONLY)),tests/python/older_torch.sh >&2 && tests/python/beside_torch.sh transformers >&2)
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_BEFORE="$(abspath $(BEFORE))" RANKLAUNCH_TEST_PYTHON="$$PYTHON" \
	$(CARGO) bench --locked --no-fail-fast --bench budgets --bench muster -- $(ONLY)

bench-muster: linker
	$(CARGO) bench --locked --bench muster -- muster $(ONLY)

# What is found is kept in target/fuzz; the seeds are those of the tests.
fuzz: linker
	@command -v c++ >/dev/null || tests/packages.sh g++
	$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	CARGO="$(CARGO)" FUZZ_SECONDS="$(FUZZ_SECONDS)" FUZZ_RUNS="$(FUZZ_RUNS)" ONLY="$(ONLY)" tests/fuzz/run.sh

# Both tools are programs of cargo's own registry; building them takes minutes, once.
audit: linker
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
