#!/bin/bash
# Every engine, with the packages that users have, on two hosts made of namespaces.
#
#   tests/platforms/engines/run.sh RANKLAUNCH [CASE...]
#
# A CASE is a part of a case's name; without one, all run. --list names the cases. SHORT=1 takes only the
# newest torch, accelerate and deepspeed, and KEEP=1 keeps the folder of logs. Virtual environments with
# older versions (about 4 GB for each torch) go into the user's cache folder, once.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "${1:?the executable}")
shift

if [ "${1:-}" = --list ]; then
    exec python3 "$here/suite.py" --list ${SHORT:+--short}
fi
if [ "$(id -u)" != 0 ]; then
    echo "left out: all cases, because hosts made of namespaces need root"
    exit 0
fi
missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need python3 python3
need ip iproute2
need unshare util-linux
# deepspeed compiles an extension of its own for gloo on CPUs.
need g++ g++
if [ ${#missing[@]} -gt 0 ]; then
    "$here/../../packages.sh" --no-install-recommends "${missing[@]}"
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
. "$here/environments.sh"
if ! newest=$("$here/../../python/find.sh" torch numpy accelerate); then
    echo "left out: all cases, because torch and accelerate do not install here"
    exit 0
fi
# Packages that do not install are left out by their cases.
ENGINES_newest=$newest
ENGINES_deepspeed=$(environment deepspeed "$newest" deepspeed==0.19.8)
export ENGINES_newest ENGINES_deepspeed
if [ -z "${SHORT:-}" ]; then
    ENGINES_torch_2_0=$(older_torch 2.0.1)
    ENGINES_torch_2_3=$(older_torch 2.3.1)
    ENGINES_torch_2_6=$(older_torch 2.6.0)
    # Their dependencies are those of the newest.
    ENGINES_accelerate_0_20=$(environment accelerate-0.20.3 "$newest" --no-deps accelerate==0.20.3)
    ENGINES_accelerate_0_30=$(environment accelerate-0.30.1 "$newest" --no-deps accelerate==0.30.1)
    export ENGINES_torch_2_0 ENGINES_torch_2_3 ENGINES_torch_2_6 ENGINES_accelerate_0_20 ENGINES_accelerate_0_30
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/engines.XXXXXX")
chmod 755 "$work"
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

# As in ../hosts/start.sh: whatever ends this also ends all that it started.
setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc --propagation private \
    timeout --foreground --kill-after=20 "${PLATFORMS_SECONDS:-1800}" \
    python3 "$here/suite.py" --work="$work" --executable="$executable" ${SHORT:+--short} -- "$@" <&0 &
suite=$!
wait "$suite"
