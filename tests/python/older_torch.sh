#!/bin/bash
# Installs the versions of torch that tests name beside the newest (4 GB each, once), into the user's cache folder.
# One that does not install is said, and its tests then say that they were skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")/../platforms/engines" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
. "$here/environments.sh"
for version in 2.3.1 2.6.0; do
    python=$(older_torch "$version")
    echo "torch $version: ${python:-does not install here}"
done
