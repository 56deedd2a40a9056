#!/bin/bash
# Hosts without a scheduler: run.sh RANKLAUNCH [OPTION...], see ../hosts/start.sh
set -euo pipefail
executable=${1:?the executable}
shift
exec "$(dirname "$0")/../hosts/start.sh" "$executable" "$@" bare
