# make demo   build, then launch a real two-node job on this machine
# make test   the whole suite
# make lint   formatting and clippy, warnings denied
# make soak   500 jobs of which any one process is killed at any moment; SOAK_SEED=… repeats a run
# make soak-torchrun   20 of them below a real torchrun
# make audit  cargo-deny and cargo-machete (installs them when missing)
#
# All set-up happens here, through the ordinary package registries: torch goes
# into one virtual environment in the user's cache folder, unless a python that
# has it is found.

SHELL := /bin/sh
CARGO ?= cargo
TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
BINARY := $(CURDIR)/target/$(TARGET)/release/ranklaunch

.PHONY: build demo test lint audit size soak soak-torchrun

build:
	$(CARGO) build --release --locked

demo: build
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	PYTHON="$$PYTHON" RANKLAUNCH="$(BINARY)" tests/demo/demo.sh

test:
	PYTHON="$$(tests/python/find.sh torch numpy accelerate)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" $(CARGO) test --locked --workspace

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

soak:
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_ROUNDS="$${SOAK_ROUNDS:-500}" \
	$(CARGO) test --locked --test soak direct -- --nocapture

soak-torchrun:
	PYTHON="$$(tests/python/find.sh torch numpy)" && \
	RANKLAUNCH_TEST_PYTHON="$$PYTHON" SOAK_TORCHRUN_ROUNDS="$${SOAK_TORCHRUN_ROUNDS:-20}" \
	$(CARGO) test --locked --test soak torchrun -- --nocapture

# The release executable is static and small enough.
size: build
	tests/size.sh "$(BINARY)"

audit:
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	command -v cargo-machete >/dev/null || $(CARGO) install --locked cargo-machete
	$(CARGO) deny --locked check bans licenses sources
	$(CARGO) machete
