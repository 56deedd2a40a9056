#!/bin/bash
# Runs a command with the root of another release: enter.sh ROOT WORK FOLDER... -- COMMAND...
#
# Called by start.sh in a mount namespace of its own. Changes to the root stay in memory. WORK and the
# other folders are at the same place in it.
set -euo pipefail
root=$1 work=$2
shift 2

new=$work/.root/new
mkdir -p "$new" "$work/.root/changes"
mount -t tmpfs tmpfs "$work/.root/changes"
mkdir "$work/.root/changes/upper" "$work/.root/changes/work"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/.root/changes/upper,workdir=$work/.root/changes/work" "$new"
mount -t proc proc "$new/proc"
mount --rbind /dev "$new/dev"
mount --rbind /sys "$new/sys"
touch "$new/etc/hosts"
while [ "$1" != -- ]; do
    mkdir -p "$new$1"
    mount --bind "$1" "$new$1"
    shift
done
shift
mkdir -p "$new$work" "$new/.old"
mount --bind "$work" "$new$work"

# A new root of the namespace, not of this process only: who enters a host gets it as well.
cd "$new"
pivot_root . .old
umount --lazy /.old
cd "$work"
unset TMPDIR
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
exec "$@"
