#!/bin/sh
# Prints the CPythons of this machine, a line each: version, root folder, program.
#
# 3.8 to 3.15, from pyenv, from the PATH, and from Debian roots in the user's cache folder, whose
# programs run by chroot. With --install the roots that are missing are made (as root, with
# debootstrap; 400 MB each).
set -eu

cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
install=${1:-}

say() { printf '%s\n' "$*" >&2; }

# A release of Debian with these minor versions of Python.
root() {
    release=$1; shift
    folder=$cache/python-$release
    if [ ! -e "$folder/complete" ] && [ "$install" = --install ]; then
        [ "$(id -u)" = 0 ] || { say "$release is left out: debootstrap needs root"; return 0; }
        command -v debootstrap >/dev/null || "$(dirname "$0")/../packages.sh" debootstrap
        mirror=$(sed -n 's/^\(URIs:\|deb\) *\(http[^ ]*debian\)[/ ].*/\2/p; s/^URIs: *\(http[^ ]*debian\)$/\1/p' \
            /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null | head -n 1)
        packages=
        for minor in "$@"; do packages=$packages,python3.$minor-minimal,libpython3.$minor-stdlib; done
        mkdir -p "$cache"
        exec 9>"$folder.lock"
        flock 9
        if [ ! -e "$folder/complete" ]; then
            say "installing Debian $release into $folder (once)"
            rm -rf "$folder"
            # Every later release is made as sid is.
            debootstrap --variant=minbase --include="${packages#,}" "$release" "$folder" \
                "$mirror" /usr/share/debootstrap/scripts/sid >&2
            touch "$folder/complete"
        fi
        exec 9>&-
    fi
    [ -e "$folder/complete" ] && [ "$(id -u)" = 0 ] || return 0
    for minor in "$@"; do
        [ -x "$folder/usr/bin/python3.$minor" ] && echo "3.$minor $folder /usr/bin/python3.$minor"
    done
    return 0
}

for minor in 8 9 10 11 12 13 14 15; do
    for python in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3."$minor" /usr/bin/python3."$minor" /usr/local/bin/python3."$minor"; do
        if [ -x "$python" ]; then echo "3.$minor / $python"; fi
    done
done
root forky 14 15
