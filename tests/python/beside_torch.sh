#!/bin/bash
# Installs what benches and tests of the warm start take beside torch: transformers and coverage (300 MB, once), each
# into an environment of the user's cache folder that sees the packages of the environment with torch. Prints the
# interpreters. What does not install is said, and what needs it then says that it was left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=$("$here/find.sh" torch numpy)
here=$here/../platforms/engines
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
. "$here/environments.sh"
for name in ${*:-transformers coverage}; do
    python=$(environment "$name" "$base" "$name")
    echo "$name: ${python:-does not install here}"
done
