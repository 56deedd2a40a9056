#!/bin/bash
# packaging/ray on real Ray: a cluster of three nodes on this machine, and a dashboard for RayJobs.
#
#   tests/platforms/ray/run.sh RANKLAUNCH [CASE...]      RAY_VERSION=2.9.3 takes another Ray
#
# Ray goes into a virtual environment in the user's cache folder, once. A CASE is a part of a
# case's name; without one, all run, or with SHORT=1 one of each kind. KEEP=1 keeps the folder of logs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "${1:?the executable}")
shift

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
venv=$cache/ray${RAY_VERSION:+-$RAY_VERSION}
wanted="ray[default]${RAY_VERSION:+==$RAY_VERSION}"
(
    # One installer at a time; what was asked for is written last.
    flock 9
    if [ "$(cat "$venv/installed.txt" 2>/dev/null)" != "$wanted" ]; then
        echo "installing $wanted into $venv" >&2
        python3 -c 'import venv, ensurepip' 2>/dev/null || "$here/../../packages.sh" python3 python3-venv
        python3 -m venv --clear "$venv"
        if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wanted"; then
            echo "left out: all cases of Ray, because $wanted does not install for $(python3 --version)"
            exit 3
        fi
        echo "$wanted" >"$venv/installed.txt"
    fi
) 9>"$cache/ray.lock" || { [ $? = 3 ] && exit 0; exit 1; }

# A python with torch, for the cases with gloo. Without one they are left out.
if [ -z "${RANKLAUNCH_TEST_PYTHON:-}" ]; then
    RANKLAUNCH_TEST_PYTHON=$("$here/../../python/find.sh" torch numpy) || RANKLAUNCH_TEST_PYTHON=
fi
export RANKLAUNCH_TEST_PYTHON

work=$(mktemp -d /tmp/ray.XXXXXX)
suite=
finish() {
    if [ -n "$suite" ]; then
        kill -KILL "$suite" 2>/dev/null || true
        wait "$suite" 2>/dev/null || true
    fi
    if [ -n "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# In a process namespace, where that is allowed, whatever ends this also ends all of Ray's daemons.
alone=()
if unshare --pid --fork --mount-proc true 2>/dev/null; then
    # Its first process is a shell that waits, and so takes every orphan's exit status as an init does:
    # Ray counts a zombie as a process that still runs.
    alone=(unshare --pid --fork --kill-child --mount-proc bash -c '"$@" <&0 & wait $!' init)
fi
"${alone[@]}" timeout --foreground --kill-after=20 "${PLATFORMS_SECONDS:-1200}" \
    "$venv/bin/python" "$here/suite.py" "$work" "$executable" "$@" <&0 &
suite=$!
wait "$suite"
