#!/bin/sh
# What the kernel of this machine may lack, on Debian's kernel in an emulated machine:
# control groups of version 2 with memory.oom.group, and TCP before Linux 6.15.
#
#   tests/vm/run.sh RANKLAUNCH
#
# Takes the executable; installs qemu and busybox where they are missing, fetches
# the kernel's package as this user, and boots it with tests/vm/init as its first
# process. Fails unless init prints that everything was as it should be.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
executable=$(realpath "$1")
if [ "$(uname -m)" != x86_64 ]; then
    echo "skipped: the emulated machine is an x86_64 one, this is $(uname -m)"
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

need() { command -v "$1" >/dev/null || "$here/../packages.sh" "$2"; }
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need ip iproute2

# The newest of the distribution's small kernels; kept, since it is 26 MB.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch/kernel
if ! [ -e "$cache/done" ]; then
    rm -rf "$cache" && mkdir -p "$cache"
    name=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -1)
    (cd "$work" && apt-get download "$name" >/dev/null && dpkg-deb -x ./*.deb "$cache")
    touch "$cache/done"
fi

root=$work/root
mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc" "$root/run"
cp "$(command -v busybox)" "$root/bin/busybox"
for name in $(busybox --list); do
    [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
done
strip -o "$root/bin/ranklaunch" "$executable"
cp "$here/init" "$here/rank.sh" "$root/"
version=$(ls "$cache/lib/modules")
mkdir -p "$root/lib/modules/$version"
for module in veth llc stp garp mrp 8021q macvlan ipvlan tls bonding; do
    find "$cache/lib/modules" -name "$module.ko" -exec cp {} "$root/lib/modules/$version/" \;
done
# iproute2's ip with its libraries, under a name that busybox does not take for its own:
# that one knows no network namespaces.
ip=$(command -v ip)
cp "$ip" "$root/bin/iproute2"
ldd "$ip" | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd"

kernel=$(find "$cache/boot" -name 'vmlinuz-*' | head -1)
timeout 600 qemu-system-x86_64 -m 1500 -nographic -no-reboot -net none -kernel "$kernel" \
    -initrd "$work/initrd" -append "console=ttyS0 quiet panic=1" </dev/null >"$work/console" 2>&1 || true
sed -n '/^== /,$p' "$work/console" | tr -d '\r'
grep -q '^== all as it should be' "$work/console"
