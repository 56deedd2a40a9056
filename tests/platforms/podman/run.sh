#!/bin/bash
# Containers of podman, as far as it starts here: run.sh RANKLAUNCH [--list] [CASE...], see ../local/start.sh
#
# Storage, networks and settings are in a folder of the test. Installs podman through apt where it is missing.
set -euo pipefail
here=$(dirname "$0")
missing=()
command -v podman >/dev/null || missing+=(podman netavark aardvark-dns crun)
# The init program of `podman run --init`.
command -v catatonit >/dev/null || missing+=(catatonit)
if [ "$(id -u)" = 0 ] && [ ${#missing[@]} -gt 0 ] && command -v apt-get >/dev/null; then
    "$here/../../packages.sh" --no-install-recommends "${missing[@]}"
fi
exec "$here/../local/start.sh" podman "$@"
