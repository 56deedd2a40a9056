# make demo   build, then launch a real two-node job on this machine
# make test   the whole suite
# make lint   formatting and clippy, warnings denied
# make bench-muster   musters of 10 to 10 000 simulated nodes, with their budget
# make audit  cargo-deny and cargo-machete (installs them when missing)
#
# All set-up happens here, through the ordinary package registries: torch goes
# into one virtual environment in the user's cache folder, unless a python that
# has it is found.

SHELL := /bin/sh
CARGO ?= cargo
TARGET := $(shell rustc -vV | sed -n 's/^host: //p')
BINARY := $(CURDIR)/target/$(TARGET)/release/ranklaunch

.PHONY: build demo test lint audit size bench-muster

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

# The release executable is static and small enough.
size: build
	tests/size.sh "$(BINARY)"

bench-muster:
	$(CARGO) bench --locked --bench muster

audit:
	command -v cargo-deny >/dev/null || $(CARGO) install --locked cargo-deny
	command -v cargo-machete >/dev/null || $(CARGO) install --locked cargo-machete
	$(CARGO) deny --locked check bans licenses sources
	$(CARGO) machete
