#!/bin/sh
# Fails where a dynamic executable needs symbols of a newer glibc than FLOOR: glibc.sh FILE FLOOR
set -eu
file=$1 floor=$2
needs=$(LC_ALL=C readelf --wide --version-info "$file" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV)
[ -n "$needs" ] || { echo "$file: no version of glibc is named, so nothing is known of it" >&2; exit 1; }
newest=$(printf '%s\n' "$needs" | tail -n 1)
if [ "$(printf '%s\n' "$floor" "$newest" | sort -V | tail -n 1)" != "$floor" ]; then
    echo "$file: needs glibc $newest, more than $floor" >&2
    exit 1
fi
echo "$file: needs glibc $newest, at most $floor"
