#!/usr/bin/env bash
# Checks packaging/README.md against the files of `make dist`: run.sh FOLDER. Prints a line per promise and fails at the
# first that is not kept. Each look has a control that must fail, so that one that sees nothing is found.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ -d "${1:-}" ] || { echo "failed: no folder ${1:-}: make dist, then run.sh FOLDER" >&2; exit 1; }
dist=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"; [ -z "${image:-}" ] || docker rmi -f "$image" >/dev/null 2>&1 || true' EXIT
say() { printf '%s\n' "$*"; }
fail() { say "failed: $*" >&2; exit 1; }
# A control: what must not pass.
refused() { local what=$1; shift; if "$@" >"$work/control" 2>&1; then fail "the control passes: $what"; fi; }
left_out=0
left() { say "left out: $*"; left_out=$((left_out + 1)); }
need() { command -v "$1" >/dev/null || "$root/tests/packages.sh" "$2"; }

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
host=$(uname -m)
name=ranklaunch-$version-$host-linux
own=$dist/$name
[ -x "$own" ] || fail "$own is missing: make dist"
floor=2.17

# --- sums
(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
[ "$(cut -c67- "$dist/SHA256SUMS")" = "$(cd "$dist" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort)" ] ||
    fail "SHA256SUMS names other files than there are"
cp "$dist/SHA256SUMS" "$dist/$name.cdx.json" "$work"; echo >> "$work/$name.cdx.json"
sums() { (cd "$work" && sha256sum --check --ignore-missing --quiet SHA256SUMS); }
refused "a changed file" sums
say "sums: $(wc -l < "$dist/SHA256SUMS") files"

# --- what it says about itself
said=$("$own" --version)
# As build.sh finds it: an archive of the source may lie in the work tree of another project.
if [ "$(git -C "$root" rev-parse --show-toplevel 2>/dev/null)" = "$(cd "$root" && pwd -P)" ]; then
    commit=$(git -C "$root" describe --always --abbrev=12 '--exclude=*' --dirty=+changes)
else
    commit=$(cut -c1-12 "$root/packaging/commit")
fi
[[ $said == "ranklaunch $version ("*static* ]] || fail "--version: $said"
if [[ $said != *"commit $commit"* ]]; then
    [ -n "${ANY_COMMIT:-}" ] || fail "--version names another commit than $commit, with ANY_COMMIT=1 that is no matter: $said"
fi
[[ $said == *"glibc $floor or newer"* ]] || fail "--version names another floor: $said"
say "version: $(tr '\n' ';' <<<"$said")"

# --- an empty root
"$root/tests/size.sh" "$own"

# --- the node-probe of each
plain=$root/target/node-probe/$host-unknown-linux-gnu/probe/node-probe
if [ ! -x "$plain" ]; then
    (cd "$root" && CARGO_ENCODED_RUSTFLAGS=-Ctarget-feature=-crt-static cargo build --quiet --locked --package node-probe \
        --profile probe --target "$host-unknown-linux-gnu" --target-dir target/node-probe)
fi
for executable in "$dist"/ranklaunch-"$version"-*-linux; do
    arch=${executable%-linux}; arch=${arch##*-}
    "$here/embedded.py" "$executable" "$work/probe-$arch"
    "$root/packaging/dist/glibc.sh" "$work/probe-$arch" "$floor" | sed "s,$work/,,"
    refused "an older floor" "$root/packaging/dist/glibc.sh" "$work/probe-$arch" 2.5
done
refused "an executable without one" "$here/embedded.py" "$(command -v readelf)" "$work/none"
if "$root/packaging/dist/glibc.sh" "$plain" "$floor" >"$work/plain" 2>&1; then
    left "the control that a plain build's node-probe needs more: $(cat "$work/plain")"
else
    say "control: $(sed "s,$root/,," "$work/plain")"
fi

# --- the oldest Debian of the mirror, with a driver
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
old=
if [ "$(id -u)" = 0 ]; then
    need debootstrap debootstrap
    mirror=$(sed -n 's/^\(URIs:\|deb\) *\(http[^ ]*debian\)[/ ].*/\2/p; s/^URIs: *\(http[^ ]*debian\)$/\1/p' \
        /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1) || true
    # From the oldest on; the mirror drops a release some years after its end.
    for release in stretch buster bullseye bookworm; do
        folder=$cache/dist-$release
        if [ ! -e "$folder/complete" ]; then
            exec 9>"$cache/dist-$release.lock"; flock 9
            if [ ! -e "$folder/complete" ]; then
                rm -rf "$folder"
                # systemd and man-db read what the package installs.
                debootstrap --variant=minbase --include=systemd,man-db "$release" "$folder" "$mirror" \
                    /usr/share/debootstrap/scripts/sid >"$work/debootstrap" 2>&1 && touch "$folder/complete"
            fi
            exec 9>&-
        fi
        if [ -e "$folder/complete" ]; then old=$folder; break; fi
    done
    [ -n "$old" ] || fail "no release of $mirror can be had: $(tail -n 3 "$work/debootstrap")"
fi

# The one that built the node-probe; the cache may hold others.
zig=$(sed -n 's/^zig=//p' "$root/packaging/dist/build.sh")
zig() { "$cache/zig-$zig/bin/python" -m ziglang "$@"; }
# 4 GPUs whose driver needs no newer C library than the node-probe.
zig cc -target "$host-linux-gnu.$floor" -shared -fPIC -O1 -w -o "$work/libnvidia-ml.so.1" "$root/tests/fake-nvml/nvml.c" -lpthread
echo FAKE_NVML_GPUS=4 > "$work/libnvidia-ml.so.1.conf"
source_of() {
    python3 -c 'import json, sys; gpus = json.load(sys.stdin)["facts"]["gpus"]; print(gpus["source"], len(gpus["gpus"]))'
}
# GPUs that the executable finds in this root.
gpus_in() { { chroot "$1" /tmp/ranklaunch check --engine command --format json -- job || true; } | source_of; }
answers_in() {
    install -m 755 "$2" "$1/tmp/probe"; : > "$work/answer"
    # Within 5 s; the answer comes on its descriptor 0.
    chroot "$1" /tmp/probe nvml 5000 0<>"$work/answer" && grep -q 'GPU-' "$work/answer"
}
try_in() {
    local folder=$1 what=$2 found
    mkdir -p "$folder/tmp"; cp "$own" "$folder/tmp/ranklaunch"
    cp "$work"/libnvidia-ml.so.1* "$folder/usr/lib/$host-linux-gnu/"
    found=$(gpus_in "$folder")
    [ "$found" = "nvml 4" ] || fail "$what: $found in place of nvml 4"
    answers_in "$folder" "$work/probe-$host" || fail "$what: the node-probe alone gives no answer"
    say "$what: the driver's 4 GPUs are found"
    if answers_in "$folder" "$plain" >"$work/why" 2>&1; then
        left "$what, the control: a plain build's node-probe runs there too"
    else
        grep -q 'GLIBC_\|libgcc_s' "$work/why" || fail "$what, the control: $(cat "$work/why")"
        say "  control: a plain build's: $(head -n 1 "$work/why" | sed 's/.*version/version/')"
    fi
    rm -f "$folder"/usr/lib/"$host"-linux-gnu/libnvidia-ml.so.1* "$folder"/tmp/probe "$folder/tmp/ranklaunch"
}
if [ -n "$old" ]; then
    glibc=$(chroot "$old" ldd --version | sed -n '1s/.* //p')
    try_in "$old" "Debian ${old##*-}, glibc $glibc"
    # Its loader and C library, and nothing else.
    loader=$work/loader
    mkdir -p "$loader/lib64" "$loader/usr/lib/$host-linux-gnu"; ln -s usr/lib "$loader/lib"
    interpreter=$(LC_ALL=C readelf --wide --program-headers "$work/probe-$host" | sed -n 's/.*interpreter: \(.*\)]$/\1/p')
    # Links in that root lead to places of it, so it follows them itself.
    cp "$old$(chroot "$old" readlink -f "$interpreter")" "$loader$interpreter"
    for library in libc.so.6 libdl.so.2 libpthread.so.0 libm.so.6 librt.so.1; do
        cp "$old$(chroot "$old" readlink -f "/lib/$host-linux-gnu/$library")" "$loader/usr/lib/$host-linux-gnu/$library"
    done
    try_in "$loader" "a root with the loader of glibc $glibc alone"
    # The control of both: no loader, no driver, and that is said.
    mkdir -p "$work/empty/tmp"; cp "$own" "$work/empty/tmp/ranklaunch"
    [ "$(gpus_in "$work/empty")" = "none 0" ] || fail "GPUs are found in an empty root: $(gpus_in "$work/empty")"
else
    left "roots of older systems: they need root"
fi

# --- the package
port=$(dpkg --print-architecture)
package=$dist/ranklaunch_${version}_$port.deb
if [ -n "$old" ]; then
    copy=$work/installed
    cp -a "$old" "$copy"
    cp "$package" "$copy/tmp/new.deb"
    # The package that an upgrade replaces: the same with an older number.
    dpkg-deb -R "$package" "$work/older"
    sed -i 's/^Version: .*/Version: 0.1.0/' "$work/older/DEBIAN/control"; echo old > "$work/older/usr/bin/ranklaunch"
    dpkg-deb --root-owner-group -b "$work/older" "$copy/tmp/old.deb" >/dev/null
    chroot "$copy" dpkg -i /tmp/old.deb >"$work/dpkg" 2>&1 || fail "dpkg: $(cat "$work/dpkg")"
    chroot "$copy" dpkg -i /tmp/new.deb >"$work/dpkg" 2>&1 || fail "dpkg: $(cat "$work/dpkg")"
    [[ $(chroot "$copy" ranklaunch --version) == "ranklaunch $version "* ]] || fail "the package is not what runs"
    chroot "$copy" dpkg --verify ranklaunch | grep . && fail "installed files differ from their sums"
    # systemd looks for its own cgroup.
    inside() {
        unshare --mount sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"' "$copy" "$@"
    }
    inside systemd-analyze verify ranklaunch@test.service >"$work/unit" 2>&1 || true
    grep -i "ranklaunch" "$work/unit" | grep -vi "man page\|man ranklaunch" && fail "systemd does not take the unit: $(cat "$work/unit")"
    printf '[Service]\nExecStart=/bin/true\nKillMod=mixed\n' > "$copy/etc/systemd/system/ranklaunch-control@.service"
    inside systemd-analyze verify ranklaunch-control@test.service >"$work/unit" 2>&1 || true
    grep -q KillMod "$work/unit" || fail "the control passes: a unit with an unknown key; $(cat "$work/unit")"
    for page in ranklaunch ranklaunch-run ranklaunch-plan ranklaunch-check ranklaunch-clean ranklaunch-profile-show; do
        for lang in man1 zh_CN/man1; do
            MANWIDTH=80 LC_ALL=C.UTF-8 timeout 60 chroot "$copy" man --warnings -E UTF-8 -l "/usr/share/man/$lang/$page.1.gz" >"$work/page" 2>"$work/warnings" ||
                fail "man cannot show $lang/$page: $(cat "$work/warnings")"
            grep -q ranklaunch "$work/page" || fail "$lang/$page is empty"
        done
    done
    grep -q 名称 "$work/page" || fail "the Chinese page is not: $(head -n 5 "$work/page")"
    chroot "$copy" dpkg -r ranklaunch >"$work/dpkg" 2>&1
    find "$copy" -xdev -path "$copy/proc" -prune -o -name '*ranklaunch*' ! -path '*/tmp/*' ! -name '*control@*' -print | grep -v '/var/lib/dpkg\|/var/log' >"$work/rest" || true
    [ ! -s "$work/rest" ] || fail "removed, and still there: $(cat "$work/rest")"
    say "package: installed over 0.1.0, verified, unit and pages read by ${old##*-}'s systemd and man, removed without a trace"
else
    left "the package in a root of its own: that needs root"
fi
listed=$(dpkg-deb -c "$package" | awk '$2 != "root/root" { print }')
[ -z "$listed" ] || fail "files of other owners: $listed"
[ -z "$(dpkg-deb -I "$package" | grep -E 'Depends|postinst|preinst|prerm|postrm')" ] || fail "it depends on something or runs scripts"
maintainer=$(dpkg-deb -f "$package" Maintainer)
[ "$maintainer" = "${MAINTAINER:-$maintainer}" ] && [[ $maintainer == ?*" <"?*@?*">" ]] || fail "it names another maintainer: $maintainer"
released=$(dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/share/doc/ranklaunch/changelog.gz | gzip -dc | sed -n "s/^## \\[$version\\] – //p")
[[ $released =~ ^[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] || fail "its changelog has no day for $version: $released"
say "package: maintained by $maintainer, released $released"

# --- archive, completions, manual pages
tar -xzf "$dist/$name.tar.gz" -C "$work"
cmp "$work/$name/bin/ranklaunch" "$own"
gzip -t "$work/$name"/share/man/man1/*.gz "$work/$name"/share/man/zh_CN/man1/*.gz
share=$work/$name/share
bash -n "$share/bash-completion/completions/ranklaunch"
for shell in zsh:zsh/site-functions/_ranklaunch fish:fish/vendor_completions.d/ranklaunch.fish; do
    need "${shell%%:*}" "${shell%%:*}"
    "${shell%%:*}" -n "$share/${shell#*:}"
done
say "archive: $(tar -tzf "$dist/$name.tar.gz" | wc -l) entries, $(find "$share/man" -name '*.gz' | wc -l) manual pages, completions of three shells"

# --- SBOM: what cargo links, and nothing that only tests or builds
"$here/sbom.py" "$dist/$name.cdx.json" "$root" "$own"
sed 's/"name": "tokio"/"name": "tokyo"/' "$dist/$name.cdx.json" > "$work/wrong.json"
refused "an SBOM without tokio" "$here/sbom.py" "$work/wrong.json" "$root" "$own"

# --- wheel
for executable in "$dist"/ranklaunch-"$version"-*-linux; do
    arch=${executable%-linux}; arch=${arch##*-}
    "$here/wheel.py" "$dist/ranklaunch-$version-"*"_$arch.whl" "$executable" "$executable.cdx.json" "$version"
done
wheel=$(echo "$dist/ranklaunch-$version-"*"_$host.whl")
mkdir "$work/changed"; cp "$own" "$work/changed"; printf x >> "$work/changed/$name"
refused "a wheel with another executable" "$here/wheel.py" "$wheel" "$work/changed/$name" "$dist/$name.cdx.json" "$version"
"$here/wheel.sh" "$wheel" "$own" | tee "$work/wheel"
left_out=$((left_out + $(grep -c '^left out' "$work/wheel" || true)))

# --- image
"$here/image.py" "$dist/ranklaunch-$version-$host-image.tar"
# One bit of the layer.
python3 - "$dist/ranklaunch-$version-$host-image.tar" "$work/wrong.tar" <<'P'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[len(data) // 2] ^= 1
open(sys.argv[2], "wb").write(data)
P
refused "a changed image" "$here/image.py" "$work/wrong.tar"
if ! docker info >/dev/null 2>&1; then
    left "the image in docker: none runs here"
elif [ -n "$(docker images -q "ranklaunch:$version")" ]; then
    # Loading replaces it, and the end of this script removes what it loaded.
    left "the image in docker: ranklaunch:$version is there already, and may be in use"
else
    image=ranklaunch:$version
    docker load -q -i "$dist/ranklaunch-$version-$host-image.tar" >/dev/null
    [ "$(docker run --rm --network none "$image" --version)" = "$said" ] || fail "the image runs another executable"
    say "image: docker loads and runs it"
fi

# --- aarch64 in an emulator, which the kernel starts for each executable of it in a user namespace of its own
other=$dist/ranklaunch-$version-aarch64-linux
if [ "$host" = aarch64 ] || [ ! -e "$other" ]; then
    [ -e "$other" ] || left "aarch64: it was not built"
else
    need qemu-aarch64-static qemu-user-static
    [ -e /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 ] || "$root/tests/packages.sh" libc6-arm64-cross
    status=0
    timeout 600 unshare --map-root-user --mount --pid --fork --mount-proc "$here/emulated.sh" "$other" "$work" >"$work/emulated" 2>&1 || status=$?
    if [ "$status" = 77 ]; then
        left "aarch64 in an emulator: $(tail -n 1 "$work/emulated")"
    else
        [ "$status" = 0 ] || fail "aarch64 in an emulator: $(tail -n 40 "$work/emulated")"
        grep '^aarch64' "$work/emulated"
    fi
fi
say "all promises kept, $left_out left out"
