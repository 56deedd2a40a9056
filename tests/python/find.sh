#!/bin/sh
# Prints the path of a python that has the modules named as arguments.
#
# Looked at in this order: RANKLAUNCH_TEST_PYTHON, python3 on the PATH, the
# virtual environment in the user's cache folder. When none has them, that
# environment is made; it is shared by all checkouts and all runs.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
venv=$cache/venv

say() { printf '%s\n' "$*" >&2; }

# Modules are looked up, not imported: importing torch costs seconds.
has() {
    python=$1; shift
    "$python" - "$@" <<'PY' 2>/dev/null
import importlib.util, sys
sys.exit(any(importlib.util.find_spec(name) is None for name in sys.argv[1:]))
PY
}

for python in "${RANKLAUNCH_TEST_PYTHON:-}" "$(command -v python3 || true)" "$venv/bin/python"; do
    if [ -n "$python" ] && [ -x "$python" ] && has "$python" "$@"; then
        # The interpreter itself, not a shim that chooses one.
        "$python" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done

command -v python3 >/dev/null || { say "python3 is missing: install it first"; exit 1; }
mkdir -p "$cache"
# One installer at a time; the loser of the race finds everything in place.
exec 9>"$cache/venv.lock"
flock 9
if [ -x "$venv/bin/python" ] && has "$venv/bin/python" "$@"; then
    echo "$venv/bin/python"
    exit 0
fi
say "installing $* into $venv (torch is large: about 5 GB on disk, once)"
if ! [ -x "$venv/bin/pip" ] && ! python3 -m venv "$venv" >&2; then
    # Debian and Ubuntu keep the module in a package of its own.
    say "python3 cannot make virtual environments; installing python3-venv"
    root=; [ "$(id -u)" = 0 ] || root="sudo -n"
    if ! { $root apt-get update -qq && $root apt-get install -y -qq python3-venv; } >&2; then
        say "hint: apt-get install python3-venv, then run this again"
        exit 1
    fi
    python3 -m venv --clear "$venv" >&2
fi
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
has "$venv/bin/python" "$@" || { say "$venv still lacks one of: $*"; exit 1; }
echo "$venv/bin/python"
