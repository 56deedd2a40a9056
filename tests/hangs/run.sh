#!/bin/bash
# How often hangs are judged right, with real torch over gloo: run.sh RANKLAUNCH
#
# The programs of kinds/ hang and those of living/ only take long. A seed decides the number of ranks, who hangs at
# which step, the groups and the names of the functions (draw.py); the program declares who hangs at which line
# (stage.py). Prints a table, and fails if too little of it is right (score.py).
#
# ONLY="checkpoint living" picks kinds, SEEDS="3 7" seeds of 1 to 20, PLACES="one two containers" where the jobs run,
# JOBS=6 how many run side by side; SHORT=1 is a form of two minutes, KEEP=1 keeps the folders of all runs.
# PROGRAMS=1 checks the programs and not the verdicts: `ranklaunch stacks` shows each rank at its declared line.
# TORCH=2.6.0 takes that version.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "${1:?the executable}")
command -v python3 >/dev/null || "$here/../packages.sh" python3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
if [ -n "${TORCH:-}" ]; then
    mkdir -p "$cache"
    here=$here/../platforms/engines
    . "$here/environments.sh"
    python=$(older_torch "$TORCH")
    here=$(cd "$(dirname "$0")" && pwd)
else
    python=$("$here/../python/find.sh" torch numpy)
fi
: "${python:?a python that has torch}"

work=$(mktemp -d "${TMPDIR:-/tmp}/hangs.XXXXXX")
chmod 755 "$work"
suite=
export HANGS_LABEL=ranklaunch-hangs-$$
declare -A filter=([container]="name=$HANGS_LABEL" [network]="name=$HANGS_LABEL" [image]="reference=$HANGS_LABEL")
finish() {
    if [ -n "$suite" ]; then
        # unshare heeds no TERM.
        kill "${end[@]}" "$suite" 2>/dev/null || true
        wait "$suite" 2>/dev/null || true
    fi
    # All else is inside its namespaces, and ends with them.
    for kind in container network image; do
        mapfile -t left < <(docker "$kind" ls -q --filter "${filter[$kind]}" $([ $kind = container ] && echo -a) 2>/dev/null)
        if [ ${#left[@]} -gt 0 ]; then docker "$kind" rm -f "${left[@]}" >/dev/null 2>&1 || true; fi
    done
    if [ -n "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
apart=() end=(-TERM)
if [ "$(id -u)" = 0 ] && unshare --net --mount --uts --ipc --pid --fork true 2>/dev/null; then
    command -v ip >/dev/null || "$here/../packages.sh" iproute2
    end=(-KILL)
    apart=(setpriv --pdeathsig KILL unshare --net --mount --uts --ipc --pid --fork --kill-child --mount-proc
        --propagation private env HANGS_NAMESPACES=1 sh -c 'ip link set lo up && exec "$@"' sh)
fi
cd "$work"
"${apart[@]}" timeout --foreground --kill-after=60 "${HANGS_SECONDS:-14400}" \
    python3 "$here/suite.py" "$work" "$executable" "$python" <&0 &
suite=$!
wait "$suite"
