#!/bin/sh
# How long `ranklaunch check` takes on this node, as a part of the time of a shell
# script that gathers the same: addresses, routes, disks, limits, cgroup, python.
#
#   benches/check.sh RANKLAUNCH [RUNS]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
binary=$1
runs=${2:-30}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# The interpreter itself, not a shim that costs more than all the rest.
PATH=$(dirname "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')"):$PATH
export PATH

# Milliseconds of all runs, after one that fills the caches.
milliseconds() {
    "$@" > /dev/null 2>&1 || true
    begin=$(date +%s%N)
    run=0
    while [ "$run" -lt "$runs" ]; do
        "$@" > /dev/null 2>&1 || true
        run=$((run + 1))
    done
    end=$(date +%s%N)
    echo $(((end - begin) / 1000000))
}

ours=$(milliseconds "$binary" check)
theirs=$(milliseconds sh "$here/gather.sh")
# Most of it is the interpreter's start; so it is said apart.
python=$(milliseconds python3 -c pass)
awk -v ours="$ours" -v theirs="$theirs" -v python="$python" -v runs="$runs" 'BEGIN {
    printf "ranklaunch check  %7.1f ms\nshell script      %7.1f ms (python3 -c pass alone %.1f ms)\n",
        ours / runs, theirs / runs, python / runs
    printf "ratio             %7.2f\n", ours / theirs
    exit !(ours < theirs)
}'
