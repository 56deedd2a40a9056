#!/bin/sh
# Fails unless the executable is static, works in a root without any other file, says its commit, and has
# at most 12 MB.
set -eu

binary=$1
fail() { echo "$binary: $*" >&2; exit 1; }

bytes=$(wc -c < "$binary")
[ "$bytes" -le 12000000 ] || fail "$bytes bytes, more than 12000000"
# readelf comes with the linker.
segments=$(LC_ALL=C readelf --wide --program-headers "$binary")
case $segments in *INTERP*) fail "asks for a dynamic loader" ;; esac
echo "$binary: $bytes bytes, static"

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cp "$binary" "$root/ranklaunch"
if [ "$(id -u)" = 0 ]; then enter=chroot; else enter="unshare --map-root-user chroot"; fi
# $enter is several words.
# shellcheck disable=SC2086
alone() { env -i PATH="$PATH" $enter "$root" /ranklaunch "$@"; }
if ! alone --version >/dev/null 2>"$root/why"; then
    if [ "$(id -u)" = 0 ]; then cat "$root/why"; fail "does not start in an empty root"; fi
    echo "skipped, this machine does not allow an empty root: $(cat "$root/why")"
    exit 0
fi
alone --version | grep -qE '^commit ([0-9a-f]{12}(\+changes)?|unknown)$' || fail "does not say its commit: $(alone --version)"
# A node without anything gets a plan, not a crash.
alone plan --device cpu --engine direct --nproc-per-node 2 -- /ranklaunch --version > "$root/plan" 2>&1 ||
    { cat "$root/plan"; fail "cannot plan in an empty root"; }
grep -q "1 × 2 = 2" "$root/plan" || { cat "$root/plan"; fail "plans something else"; }
echo "it plans in an empty root"
