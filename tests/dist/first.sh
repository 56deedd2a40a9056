#!/usr/bin/env bash
# What the README says, in a container that has a Python and neither cargo nor ranklaunch: first.sh FOLDER PYTHON, the
# files of `make dist` and a python with torch. The commands are read out of README.md. `pip install` looks in FOLDER;
# nothing else is set. Prints how long the first success and the hang take, and fails above 2 and 5 minutes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dist=$(cd "$1" && pwd) python=$2
say() { printf '%s\n' "$*"; }
fail() { say "failed: $*" >&2; exit 1; }
if ! docker info >/dev/null 2>&1; then say "left out: the README in a container: no docker runs here"; exit 0; fi

work=$(mktemp -d)
name=ranklaunch-first-$$
cleanup() {
    docker rm -f "$name" >/dev/null 2>&1 || true
    docker rmi -f "$name" "$name-copied" ${loaded:+"$loaded"} >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

# The block of a language that holds a word, as both READMEs have it.
block() {
    python3 - "$root" "$@" <<'P'
import re, sys
root, language, word = sys.argv[1:]
found = [[text for text in re.findall(rf"```{language}\n(.*?)```", open(f"{root}/README{end}", encoding="utf-8").read(), re.S) if word in text]
         for end in (".md", ".zh-CN.md")]
if found[0] != found[1] or len(found[0]) != 1:
    sys.exit(f"the READMEs have no block in common that holds '{word}', or several: {found}")
print(found[0][0], end="")
P
}
install=$(block sh 'pip install') archive=$(block sh sha256sum) image=$(block dockerfile COPY)
echo_example=$(block sh 'echo "rank') program=$(block python all_reduce) hang=$(block sh hang.py)
shows=$(block text '[r0]')

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | head -n 1)
own=$dist/ranklaunch-$version-$(uname -m)-linux
said=$("$own" --version)

# The links into /usr that programs expect, and nothing else.
mkdir -p "$work/root"/{usr,etc,root,work} && mkdir -m 1777 "$work/root/tmp"
for link in bin sbin lib lib32 lib64; do if [ -L "/$link" ]; then cp -P "/$link" "$work/root"; fi; done
tar -C "$work/root" -c . | docker import - "$name" >/dev/null

mapfile -t of_python < <("$python" -c 'import sys, sysconfig; print(sys.base_prefix, sys.prefix, sysconfig.get_path("purelib"), sys.version_info[1], sep="\n")')
base=${of_python[0]} prefix=${of_python[1]} packages=${of_python[2]} minor=${of_python[3]}
options=(--network none --workdir /work --tmpfs /usr/local:exec -v /usr:/usr:ro -v "$dist:/dist:ro")
for folder in "$base" "$prefix"; do case $folder in /usr | /usr/*) ;; *) options+=(-v "$folder:$folder:ro") ;; esac; done
# The host's own, if it has them.
for tool in cargo rustc ranklaunch; do if [ -e "/usr/bin/$tool" ]; then options+=(-v "/dev/null:/usr/bin/$tool:ro"); fi; done

began=$SECONDS
docker run -d --name "$name" "${options[@]}" "$name" /usr/bin/sleep 3600 >/dev/null
inside() { docker exec -e HOME=/root -e PATH=/work/venv/bin:/usr/local/bin:/usr/bin:/bin "${more[@]}" "$name" sh -ec "$*"; }
more=()
inside '! command -v cargo && ! command -v ranklaunch' || fail "the container is not bare"
# What a person has before: an environment of Python.
inside "$base/bin/python3.$minor -m venv /work/venv"
more=(-e PIP_NO_INDEX=1 -e PIP_FIND_LINKS=/dist -e PIP_DISABLE_PIP_VERSION_CHECK=1)
inside "$install" >"$work/said" 2>&1 || fail "$install: $(cat "$work/said")"
more=()
inside "$echo_example" >"$work/said" 2>&1 || fail "$echo_example: $(cat "$work/said")"
took=$((SECONDS - began))
while read -r line; do grep -qF "$line" "$work/said" || fail "it does not show '$line': $(cat "$work/said")"; done <<<"$shows"
say "first success: $took s from a bare container over pip install to both ranks, of 120"
[ "$took" -le 120 ] || fail "that is more than two minutes"

began=$SECONDS
docker exec -i "$name" sh -c 'cat > /work/hang.py' <<<"$program"
more=(-e "PYTHONPATH=$packages")
status=0
inside "$hang" >"$work/said" 2>&1 || status=$?
took=$((SECONDS - began))
line=$(grep -n 'time.sleep' <<<"$program" | cut -d: -f1)
[ "$status" = 91 ] || fail "the hang ends with $status in place of 91: $(cat "$work/said")"
grep -q "culprit: rank 3 (node 0) never entered all_reduce 7 of group default_pg: load_batch at" "$work/said" &&
    grep -q "hang.py:$line" "$work/said" || fail "rank 3 is not named with line $line: $(cat "$work/said")"
say "the hang: $took s to rank, collective and line, of 300"
[ "$took" -le 300 ] || fail "that is more than five minutes"

more=()
inside "cd /dist; $archive" >"$work/said" 2>&1 || fail "$archive: $(cat "$work/said")"
[ "$(inside '/usr/local/bin/ranklaunch --version')" = "$said" ] || fail "the archive holds another executable"
say "archive: its sum is right, /usr/local/bin/ranklaunch runs"

if [ -n "$(docker images -q "ranklaunch:$version")" ]; then
    say "left out: the image: ranklaunch:$version is there already, and may be in use"
    exit 0
fi
loaded=ranklaunch:$version
docker load -q -i "$dist/ranklaunch-$version-$(uname -m)-image.tar" >/dev/null
printf 'FROM %s\n%s\n' "$name" "${image//VERSION/$version}" | docker build -q -t "$name-copied" - >"$work/said" 2>&1 || fail "$image: $(cat "$work/said")"
[ "$(docker run --rm --network none "$name-copied" /usr/local/bin/ranklaunch --version)" = "$said" ] || fail "the image holds another executable"
say "image: COPY --from puts the same executable into an image"
