#!/bin/bash
# Prints a folder with a Debian release and its Slurm, Open MPI and MPICH: root.sh RELEASE
#
# Made once by debootstrap, from the mirror that apt uses here, and kept in the user's cache folder.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
release=${1:?a release of Debian}
packages=python3-minimal,libpython3-stdlib,iproute2,util-linux,procps,hostname,munge,slurmctld,slurmd,slurm-client,openmpi-bin,mpich

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
root=$cache/$release
# Written last: without it, or with other packages, the folder was left half-made.
stamp=$root.installed
complete() { [ "$(cat "$stamp" 2>/dev/null)" = "$packages" ]; }

if ! complete; then
    mkdir -p "$cache"
    # One at a time; the loser of the race finds everything in place.
    exec 9>"$root.lock"
    flock 9
fi
if ! complete; then
    command -v debootstrap >/dev/null || "$here/../../packages.sh" --no-install-recommends debootstrap
    # $(REPO_URI) and the rest are apt's, not the shell's.
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sed -n 1p)
    echo "installing Debian $release into $root (about 1 GB, once)" >&2
    rm -rf "$root" "$stamp"
    # Nothing of it starts a daemon: debootstrap only unpacks and configures.
    debootstrap --variant=minbase --include="$packages" "$release" "$root" ${mirror:+"$mirror"} >"$root.log" 2>&1 || {
        tail -n 5 "$root.log" >&2
        echo "hint: the whole log is $root.log" >&2
        exit 1
    }
    rm -f "$root"/var/cache/apt/archives/*.deb
    echo "$packages" >"$stamp"
fi
echo "$root"
