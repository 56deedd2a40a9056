#!/bin/sh
# A two-node job on one machine: two launchers, two ranks each, a real torchrun
# with gloo on each node, and a leftover of an "earlier run" that is cleared.
set -eu

: "${PYTHON:?a python that has torch}" "${RANKLAUNCH:?the executable}"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
stale=
trap 'rm -rf "$work"; [ -z "$stale" ] || kill -KILL "$stale" 2>/dev/null || true' EXIT
title() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# The job runs a copy, so that nothing else on this machine can be taken for it.
cp "$here/train.py" "$work/train.py"
cd "$work"
port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

# What the platform would set in each container.
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port"
set -- --python "$PYTHON" --device cpu --nproc-per-node 2 --log-dir "$work/logs" -- train.py

title "1. what node 0 would do, and why: ranklaunch plan"
RANK=0 "$RANKLAUNCH" plan "$@"

title "2. a rank of an earlier run was left behind"
# It waits for a peer that will never come; its launcher is long gone.
stale=$(RANK=1 MASTER_PORT=1 sh -c '"$0" train.py </dev/null >/dev/null 2>&1 & echo $!' "$PYTHON")
printf 'process %s: %s\n' "$stale" "$(tr '\0' ' ' < "/proc/$stale/cmdline")"

title "3. both nodes start"
RANK=1 "$RANKLAUNCH" run "$@" > "$work/node1.txt" 2>&1 &
node1=$!
RANK=0 "$RANKLAUNCH" run "$@" || { echo "node 0 failed"; cat "$work/node1.txt"; exit 1; }
wait "$node1" || { echo "node 1 failed"; cat "$work/node1.txt"; exit 1; }

title "4. node 1 said"
cat "$work/node1.txt"

title "5. the leftover is gone"
if kill -0 "$stale" 2>/dev/null; then echo "process $stale is still there"; exit 1; fi
echo "process $stale was ended"
stale=

title "6. logs"
(cd "$work" && find logs -type f | sort)
title "what rank 0 wrote"
cat "$work"/logs/latest/node-0/attempt-0/rank-00000.out
