#!/bin/bash
# packaging/kubernetes against a real API server, and docs/platforms/kubernetes.md.
#
#   tests/platforms/kubernetes/run.sh RANKLAUNCH [CASE...]
#
# etcd and kube-apiserver run on loopback, on free ports, with their data in a temporary folder. The server is
# built once (build.sh) into the user's cache folder. RANKLAUNCH_CRDS is a folder of the operators'
# CustomResourceDefinitions; what needs one that is not there is left out. A CASE is a part of a case's name.
# SHORT=1 does not build the server, KEEP=1 keeps the folder of logs.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "${1:?the executable}")
shift

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
server=$cache/kube-1.20.2
wanted="kube-apiserver 1.20.2, build.sh $(cksum <"$here/build.sh")"
why=
(
    # One build at a time; what was built is written last.
    flock 9
    if [ "$(cat "$server/installed.txt" 2>/dev/null)" != "$wanted" ]; then
        if [ -n "${SHORT:-}" ]; then
            echo "SHORT=1 does not build the API server, and $server has none" >"$cache/kube.why"
            exit 3
        fi
        echo "building an API server into $server (once, some minutes)" >&2
        nice -n 10 "$here/build.sh" "$server" >"$cache/kube.why" || exit 3
        echo "$wanted" >"$server/installed.txt"
    fi
) 9>"$cache/kube.lock" || why=$(tail -1 "$cache/kube.why")

if [ -z "$why" ] && ! { command -v etcd && command -v kubectl; } >/dev/null; then
    "$here/../../packages.sh" --no-install-recommends etcd-server kubernetes-client ||
        why="etcd-server and kubernetes-client cannot be installed"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/kube.XXXXXX")
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

# In a process namespace, where that is allowed, whatever ends this also ends both daemons.
alone=()
if unshare --pid --fork --mount-proc true 2>/dev/null; then
    alone=(unshare --pid --fork --kill-child --mount-proc)
fi
"${alone[@]}" timeout --foreground --kill-after=20 "${PLATFORMS_SECONDS:-600}" \
    python3 "$here/suite.py" --work="$work" --executable="$executable" --server="$server" ${why:+--without="$why"} "$@" <&0 &
suite=$!
wait "$suite"
