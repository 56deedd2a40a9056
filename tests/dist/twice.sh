#!/usr/bin/env bash
# Two builds of this commit in two folders give the same bytes: twice.sh FOLDER [ARCH...]. They lie at paths of other
# lengths, with other values of what must not matter. FOLDER keeps both.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
one=$folder/a two=$folder/another/and-a-longer-one
for clone in "$one" "$two"; do
    # Otherwise the output of an earlier call would be compared, not built.
    rm -rf "$clone/source" "$clone/dist" "$clone/dist.build"
    mkdir -p "$clone"
done
git clone --quiet "$root" "$one/source"
# The other one has no git: an archive of the source.
mkdir "$two/source"
git -C "$root" archive HEAD | tar -x -C "$two/source"
(umask 022; "$one/source/packaging/dist/build.sh" "$one/dist" "$@")
(umask 077; cd / && HOSTNAME=elsewhere USER=somebody TZ=Asia/Shanghai LANG=C.UTF-8 CARGO_BUILD_JOBS=1 \
    RANKLAUNCH_LANG=zh CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
    "$two/source/packaging/dist/build.sh" "$two/dist" "$@")

# Prints every file that differs or that only one has.
compare() { diff -rq "$1" "$2"; }
compare "$one/dist" "$two/dist" || { echo "two builds of $(git -C "$root" rev-parse --short HEAD) differ"; exit 1; }
# The control: one byte.
cp -a "$one/dist" "$folder/control"
printf x >> "$folder/control/SHA256SUMS"
if compare "$one/dist" "$folder/control" >/dev/null; then echo "the control passes: a changed file is not seen"; exit 1; fi
rm -rf "$folder/control"
echo "the same bytes twice: $(wc -l < "$one/dist/SHA256SUMS") files of a clone and of an archive of the source"
