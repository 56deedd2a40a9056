#!/bin/bash
# Open MPI and MPICH of the distribution on three hosts, some inside a Slurm allocation:
# run.sh RANKLAUNCH [OPTION...], see ../hosts/start.sh
set -euo pipefail
executable=${1:?the executable}
shift
exec "$(dirname "$0")/../hosts/start.sh" "$executable" "$@" mpi
