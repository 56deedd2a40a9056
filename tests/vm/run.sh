#!/bin/sh
# Features that the kernel of this machine may lack, on Debian's kernels in an emulated machine:
# control groups of version 2 with memory.oom.group, TCP before Linux 6.15, and what older
# kernels and runtimes refuse.
#
#   tests/vm/run.sh RANKLAUNCH [KERNEL...]
#
# Takes the executable; installs qemu and busybox where they are missing, and boots each
# kernel with tests/vm/init as its first process. Fails unless init prints each time that
# everything was as it should be. A KERNEL is a folder with boot/vmlinuz-* and lib/modules, as
# `dpkg-deb -x` unpacks it; without one those are this distribution's own and the oldest that
# its mirror still has, whose packages are fetched as this user.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
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

command -v cc >/dev/null || "$here/../packages.sh" gcc libc6-dev

# Kept, since each package is some 20 MB.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch/kernels

# fetched NAME APT-OPTIONS...: the suite's newest small kernel, in $cache/NAME.
fetched() {
    name=$1
    shift
    [ -e "$cache/$name/done" ] && return
    package=$(apt-cache "$@" depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: //p' | head -1)
    [ -n "$package" ] || return 1
    rm -rf "$cache/$name" "$work/deb" && mkdir -p "$cache/$name" "$work/deb"
    (cd "$work/deb" && apt-get "$@" download "$package" >/dev/null 2>&1) || return 1
    dpkg-deb -x "$work/deb/"*.deb "$cache/$name"
    touch "$cache/$name/done"
}

# The same of the oldest suite that the mirror of this machine's apt has, with lists, state
# and cache of apt's own elsewhere.
oldest() {
    [ -e "$cache/oldest/done" ] && return
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
    for suite in stretch buster bullseye; do
        apt=$work/apt-$suite
        mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
        : >"$apt/status"
        echo "deb $mirror $suite main" >"$apt/sources.list"
        set -- -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
            -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
            -o Dir::Etc::trustedparts=/usr/share/keyrings -o Acquire::Languages=none
        if apt-get "$@" update >/dev/null 2>&1 && fetched oldest "$@"; then return; fi
    done
    echo "skipped: the mirror of this machine has no older kernel"
    return 1
}

executable=$(realpath "$1")
shift
if [ $# = 0 ]; then
    fetched own
    set -- "$cache/own"
    ! oldest || set -- "$@" "$cache/oldest"
fi

# booted KERNEL: the console of a machine with this kernel; succeeds where all was right.
booted() {
    root=$work/root
    rm -rf "$root"
    mkdir -p "$root/bin" "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/etc" "$root/run"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for name in $(busybox --list); do
        [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
    done
    strip -o "$root/bin/ranklaunch" "$executable"
    cc -static -O1 -o "$root/bin/refuse_calls" "$here/../programs/refuse_calls.c"
    cp "$here/init" "$here/rank.sh" "$here/refused.sh" "$root/"
    version=$(ls "$1/lib/modules")
    mkdir -p "$root/lib/modules/$version"
    for module in veth llc stp garp mrp 8021q macvlan ipvlan tls bonding; do
        find "$1/lib/modules" -name "$module.ko" -exec cp {} "$root/lib/modules/$version/" \;
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

    kernel=$(find "$1/boot" -name 'vmlinuz-*' | head -1)
    timeout 900 qemu-system-x86_64 -m 1500 -nographic -no-reboot \
        -net none -kernel "$kernel" -initrd "$work/initrd" -append "console=ttyS0 quiet panic=1" \
        </dev/null >"$work/console" 2>&1 || true
    sed -n '/^== /,$p' "$work/console" | tr -d '\r'
    grep -q '^== all as it should be' "$work/console"
}

failed=0
for kernel; do booted "$kernel" || failed=1; done
exit $failed
