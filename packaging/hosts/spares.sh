#!/bin/bash
# Six hosts without a scheduler: four compute, two wait for the seat of one that is lost. The same file starts every host:
#
#   pdsh -w n[1-6] /shared/job/spares.sh
#
# Of the hosts in the list the last two wait at first. A host that comes back is started by the same line again; it finds
# its seat taken and waits itself. docs/guide/nodes.md tells the rest.
set -euo pipefail
cd "$(dirname "$0")"
exec ranklaunch run --nodes 'n[1-6]' --spares 2 --log-dir logs -- train.py
