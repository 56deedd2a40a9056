#!/bin/bash
# packaging/compose on a real Docker engine: run.sh RANKLAUNCH [--list] [CASE...], see ../local/start.sh
#
# Takes `docker compose`, else docker-compose 1.27 or newer. The image is made of this machine's own files.
set -euo pipefail
exec "$(dirname "$0")/../local/start.sh" compose "$@"
