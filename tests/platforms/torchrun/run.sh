#!/bin/bash
# The same command lines by torchrun and by this launcher: run.sh RANKLAUNCH [--list] [CASE...], see ../local/start.sh
#
# SHORT=1 takes a third of the cases. Needs a python with torch, and no GPU.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${2:-}" != --list ] && ! TORCHRUN_PYTHON=$("$here/../../python/find.sh" torch); then
    echo "left out: all cases, because torch does not install here"
    exit 0
fi
export TORCHRUN_PYTHON
exec "$here/../local/start.sh" torchrun "$@"
