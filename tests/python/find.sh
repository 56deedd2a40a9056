#!/bin/sh
# Prints the path of a python that has the modules named as arguments.
#
# Searches in this order: RANKLAUNCH_TEST_PYTHON, python3 in the PATH, the virtual environment
# in the user's cache folder. If none has them, that environment is created; all checkouts and
# runs share it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
venv=$cache/venv
# A copy of what was asked for, written last: without it, or with another one,
# the environment was left half-made or is of an earlier version.
stamp=$venv/installed.txt

say() { printf '%s\n' "$*" >&2; }

# Modules are looked up, not imported: importing torch costs seconds.
has() {
    python=$1; shift
    "$python" - "$@" 2>/dev/null <<'PY'
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
}

# The interpreter itself, not a shim that chooses one.
itself() { "$1" -c 'import sys; print(sys.executable)'; }

complete() { [ -x "$venv/bin/python" ] && cmp -s "$here/requirements.txt" "$stamp"; }

for python in "${RANKLAUNCH_TEST_PYTHON:-}" "$(command -v python3 || true)"; do
    if [ -n "$python" ] && [ -x "$python" ] && has "$python" "$@"; then
        itself "$python"
        exit 0
    fi
done

if ! complete; then
    mkdir -p "$cache"
    # One installer at a time; the loser of the race finds everything in place.
    exec 9>"$cache/venv.lock"
    flock 9
fi
if ! complete; then
    say "installing torch, numpy and accelerate into $venv (about 5 GB on disk, once)"
    command -v python3 >/dev/null || "$here/../packages.sh" python3 python3-venv
    # Debian and Ubuntu keep two of the modules that this needs in a package of its own.
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        say "this python3 cannot make virtual environments"
        "$here/../packages.sh" python3-venv
    fi
    # From nothing: what an interrupted installer left may look whole to pip.
    if ! python3 -m venv --clear "$venv" >&2; then
        say "hint: $(command -v python3) needs the modules venv and ensurepip;" \
            "or name a python that has torch: RANKLAUNCH_TEST_PYTHON=/path/to/python"
        exit 1
    fi
    if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir \
        -r "$here/requirements.txt" >&2; then
        say "hint: it starts from nothing the next time;" \
            "or name a python that has torch: RANKLAUNCH_TEST_PYTHON=/path/to/python"
        exit 1
    fi
    cp "$here/requirements.txt" "$stamp.new"
    mv "$stamp.new" "$stamp"
fi
has "$venv/bin/python" "$@" || { say "$venv lacks one of: $*"; exit 1; }
itself "$venv/bin/python"
