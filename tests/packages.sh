#!/bin/sh
# Installs Debian or Ubuntu packages: packages.sh PACKAGE...
#
# As root or by a sudo that asks nothing; where neither is possible it says what
# to type and fails.
set -eu

say() { printf '%s\n' "$*" >&2; }

if ! command -v apt-get >/dev/null; then
    say "hint: install what Debian calls $*, then run this again"
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then root="sudo -n"; fi
say "installing $*"
export DEBIAN_FRONTEND=noninteractive
# $root is one word, two, or none.
# shellcheck disable=SC2086
if ! { $root apt-get update -qq && $root apt-get install -y -qq "$@"; } >&2; then
    say "hint: sudo apt-get install $*, then run this again"
    exit 1
fi
