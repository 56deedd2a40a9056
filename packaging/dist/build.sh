#!/usr/bin/env bash
# Builds the release of this commit: build.sh FOLDER [ARCH...]; `make dist` does. packaging/README.md says what each file is.
#
# MAINTAINER='NAME <ADDRESS>' is whom the packages and images name. RELEASE_DATE=YYYY-MM-DD, by default the day of the
# commit, is that of the version in the packaged changelog where CHANGELOG.md has none yet.
#
# Two builds of one commit give the same bytes wherever they lie, if compiler, linker and C library are the same;
# the SBOM names these. Only FOLDER and its neighbour FOLDER.build are written, and tools go to the user's cache folder.
set -euo pipefail
# Without links: git and rustc name folders in this way, and the paths that are kept out of the executable are compared.
here=$(cd "$(dirname "$0")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
cd "$root"

# glibc of CentOS 7, the oldest that drivers of today still meet.
floor=2.17
zig=0.17.1
zigbuild=0.24.1
hatchling=1.33.0

say() { printf '%s\n' "$*" >&2; }
fail() { say "dist: $*"; exit 1; }

[ $# -ge 1 ] || fail "name a folder: build.sh FOLDER [ARCH...]"
mkdir -p "$1"
out=$(cd "$1" && pwd -P)
shift
arches=("$@")
named=$#
[ $# -gt 0 ] || arches=(x86_64 aarch64)
host=$(uname -m)
for arch in "${arches[@]}"; do
    case $arch in x86_64 | aarch64) ;; *) fail "unknown architecture $arch: x86_64 or aarch64" ;; esac
done
# Said before the builds, which take minutes.
case " ${arches[*]} " in
    *" $host "*) ;;
    *) fail "name $host too (${arches[*]} $host): the executable that runs here writes the manual pages" ;;
esac
# No address of a person stands in the source: whoever publishes packages answers for them.
maintainer=${MAINTAINER:-ranklaunch maintainers <ranklaunch@localhost>}
case $maintainer in
    *$'\n'*) fail "MAINTAINER has several lines; it is NAME <ADDRESS>" ;;
    ?*" <"?*@?*">") ;;
    *) fail "MAINTAINER is '$maintainer', not NAME <ADDRESS>" ;;
esac
[ -z "${RELEASE_DATE:-}" ] || [ "$(date -d "$RELEASE_DATE" +%F 2>/dev/null)" = "$RELEASE_DATE" ] ||
    fail "RELEASE_DATE is '$RELEASE_DATE', not a day as YYYY-MM-DD"
work=$out.build
mkdir -p "$work"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch

# Flags from outside would replace those of .cargo/config.toml, which make the executable static.
# Profiles, linkers and wrappers of cargo would change the bytes, and RANKLAUNCH_LANG the texts that the executable writes.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS CARGO_BUILD_TARGET RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER \
    CARGO_BUILD_RUSTC_WRAPPER CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER "${!CARGO_PROFILE_@}" "${!CARGO_TARGET_@}" "${!RANKLAUNCH_@}"
export LC_ALL=C TZ=UTC CARGO_INCREMENTAL=0

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
if top=$(git rev-parse --show-toplevel 2>"$work/git") && [ "$top" = "$root" ]; then
    commit=$(git describe --always --abbrev=12 '--exclude=*' --dirty=+changes)
    epoch=$(git log -1 --format=%ct)
else
    # `git archive` writes both into an archive of the source.
    read -r commit epoch < packaging/commit
    case $commit in
        *[!0-9a-f]*) fail "neither packaging/commit nor git says which commit $root is: ${top:-$(head -n 1 "$work/git")}" ;;
    esac
    commit=${commit:0:12}
fi
export RANKLAUNCH_COMMIT=$commit SOURCE_DATE_EPOCH=$epoch
released=${RELEASE_DATE:-$(date -d "@$epoch" +%F)}
say "dist: ranklaunch $version, commit $commit, released $released by $maintainer"
# An artefact of another version would be summed up as one of this.
rm -f "$out"/ranklaunch[-_]* "$out/SHA256SUMS"
[ -z "$(ls -A "$out")" ] || fail "$out holds other files; name an empty folder"

# A virtual environment with one package of Python's registry.
environment() {
    say "installing $2 into $1 (once)"
    rm -rf "$1"
    python3 -m venv "$1" 2>/dev/null || { tests/packages.sh python3-venv && python3 -m venv "$1"; }
    "$1/bin/pip" install -q "$2"
}

tools() {
    command -v cargo >/dev/null || fail "there is no cargo on PATH: install Rust 1.91 or newer"
    command -v cc >/dev/null || tests/packages.sh gcc libc6-dev
    command -v readelf >/dev/null || tests/packages.sh binutils
    command -v dpkg-deb >/dev/null || tests/packages.sh dpkg
    command -v python3 >/dev/null || tests/packages.sh python3 python3-venv
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$(python3 --version) is too old: the packages are made by Python 3.10 or newer"
    local venv=$cache/zig-$zig programs=$cache/cargo-zigbuild-$zigbuild
    packer=$cache/hatchling-$hatchling/bin/python
    mkdir -p "$cache"
    exec 9>"$cache/zig.lock"
    flock 9
    "$venv/bin/python" -m ziglang version >/dev/null 2>&1 || environment "$venv" "ziglang==$zig"
    "$packer" -m hatchling --help >/dev/null 2>&1 || environment "${packer%/bin/python}" "hatchling==$hatchling"
    if [ ! -x "$programs/bin/cargo-zigbuild" ]; then
        say "installing cargo-zigbuild $zigbuild into $programs (once)"
        env -u SOURCE_DATE_EPOCH cargo install --quiet --locked --no-default-features --root "$programs" "cargo-zigbuild@$zigbuild"
    fi
    exec 9>&-
    CARGO_ZIGBUILD_ZIG_PATH=$("$venv/bin/python" -c 'import ziglang, os; print(os.path.join(os.path.dirname(ziglang.__file__), "zig"))')
    export CARGO_ZIGBUILD_ZIG_PATH PATH=$programs/bin:$PATH
}

# Paths of the source and of the compiler's own must not be in the executable. These flags join those of
# .cargo/config.toml; the variables of cargo would replace them.
remap() {
    local home=${CARGO_HOME:-$HOME/.cargo}
    # The last that fits counts, and the folder of the build may lie in that of the source.
    printf '%s\n' "--remap-path-prefix=$root=/ranklaunch" "--remap-path-prefix=$home=/cargo" "--remap-path-prefix=$work=/build"
}

# Names in one line the files that cannot be built here; the rest is built all the same, unless somebody asked for just this.
left_out=()
leave_out() {
    [ "$named" -eq 0 ] || fail "$1 was asked for and cannot be built: $2"
    left_out+=("$1 is left out: $2")
}
standard_library() {
    [ -d "$(rustc --print sysroot)/lib/rustlib/$1" ] || rustup target add "$1" >&2
}

linker_of() {
    [ "$1" != "$host" ] || { echo cc; return; }
    local debian=${1/x86_64/x86-64}
    local port=${1/aarch64/arm64}
    port=${port/x86_64/amd64}
    command -v "$1-linux-gnu-gcc" >/dev/null ||
        tests/packages.sh "gcc-$debian-linux-gnu" "libc6-dev-$port-cross" || return 1
    echo "$1-linux-gnu-gcc"
}

# Fails unless the file is what a release promises.
static() {
    # Not inside `case`, where a readelf that fails would pass for a static executable.
    local headers
    headers=$(readelf --wide --program-headers "$1")
    case $headers in
        *INTERP*) fail "$1 asks for a dynamic loader: crt-static is missing, flags from outside replaced .cargo/config.toml" ;;
    esac
    "$here/glibc.sh" "$2" "$floor" || fail "the node-probe of $1 does not keep to glibc $floor"
    ! grep -aqF -e "$root/" -e "${CARGO_HOME:-$HOME/.cargo}/" -e "$work/" "$1" ||
        fail "$1 holds a path of this machine: $(strings "$1" | grep -F -e "$root/" -e "${CARGO_HOME:-$HOME/.cargo}/" -e "$work/" | head -n 1)"
}

build() {
    local arch=$1 target=$1-unknown-linux-gnu linker flags probe
    standard_library "$target" || { leave_out "$arch" "rustup target add $target fails here"; return 0; }
    linker=$(linker_of "$arch") || { leave_out "$arch" "no $arch-linux-gnu-gcc to link with"; return 0; }
    flags=$(remap | sed 's/.*/"&"/' | paste -sd,)
    say "dist: the node-probe for $arch, glibc $floor"
    CARGO_ENCODED_RUSTFLAGS=$(printf '%s\x1f' -Ctarget-feature=-crt-static; remap | paste -sd $'\x1f') \
        cargo zigbuild --quiet --locked --package node-probe --profile probe --target "$target.$floor" --target-dir "$work/probe"
    probe=$work/probe/$target/probe/node-probe
    say "dist: ranklaunch for $arch"
    RANKLAUNCH_NODE_PROBE=$probe cargo build --quiet --locked --release --target "$target" --target-dir "$work/target" \
        --config "target.$target.rustflags=[$flags]" --config "target.$target.linker='$linker'"
    static "$work/target/$target/release/ranklaunch" "$probe"
    built+=("$arch:$linker:$work/target/$target/release/ranklaunch")
}

tools
built=()
for arch in "${arches[@]}"; do build "$arch"; done
[ ${#built[@]} -gt 0 ] || fail "nothing was built: ${left_out[*]}"
# The texts are the same for all; they are written by the one that runs here.
own=
for one in "${built[@]}"; do
    [ "${one%%:*}" != "$host" ] || own=${one#*:*:}
done
[ -n "$own" ] || fail "the executable for $host is not among ${arches[*]}; it writes the manual pages"
python3 "$here/pack.py" --out "$out" --own "$own" --version "$version" --commit "$commit" --epoch "$epoch" \
    --maintainer "$maintainer" --released "$released" --zig "$zig" --hatchling "$packer" "${built[@]}"
for line in "${left_out[@]}"; do say "dist: $line"; done
(cd "$out" && cat SHA256SUMS)
