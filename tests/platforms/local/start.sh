#!/bin/bash
# Runs the cases of a folder beside this one on this machine: start.sh FOLDER RANKLAUNCH [--list] [CASE...]
#
# A CASE is a part of a case's name; without one, all run. SHORT=1 leaves out the long ones, KEEP=1 keeps the
# folder of logs. Each folder has a run.sh, which prepares what its cases need.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?a folder beside this one}
executable=$(realpath "${2:?the executable}")
shift 2
command -v python3 >/dev/null || "$here/../../packages.sh" python3

work=$(mktemp -d "${TMPDIR:-/tmp}/$folder.XXXXXX")
suite=
finish() {
    if [ -n "$suite" ]; then
        # It removes what it made outside of its folder.
        kill -TERM "$suite" 2>/dev/null || true
        wait "$suite" 2>/dev/null || true
    fi
    if [ -n "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf "$work"; fi
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
timeout --foreground --kill-after=60 "${PLATFORMS_SECONDS:-900}" \
    python3 "$here/suite.py" "$folder" "$work" "$executable" "$@" <&0 &
suite=$!
wait "$suite"
