#!/usr/bin/env bash
# Installs the wheel as people do: wheel.sh WHEEL EXECUTABLE. By the pip of three Pythons, by uv, and by pip in an
# environment of conda where a program of it is on the PATH.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
wheel=$1 executable=$2
said=$("$executable" --version)
arch=${executable%-linux}; arch=${arch##*-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "failed: $*" >&2; exit 1; }
# Caches of byte code would be what is left behind.
export PYTHONDONTWRITEBYTECODE=1 PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 UV_OFFLINE=1 UV_NO_CONFIG=1
unset PYTHONPATH VIRTUAL_ENV PIP_FIND_LINKS "${!RANKLAUNCH_@}"

runs() { [ "$("$@" --version)" = "$said" ] || fail "$* is another executable"; }
# Without the lock that uv keeps in an environment.
files() { (cd "$1" && find . ! -path ./.lock | LC_ALL=C sort); }
# Installs, runs and removes: installed ENVIRONMENT INSTALL REMOVE, two commands of several words.
installed() {
    local environment=$1 before after
    before=$(files "$environment")
    # shellcheck disable=SC2086
    $2 >"$work/said" 2>&1 || fail "$2: $(cat "$work/said")"
    runs "$environment/bin/ranklaunch"
    runs "$environment/bin/python" -m ranklaunch
    cmp -s "$environment/bin/ranklaunch" "$executable" || fail "$environment/bin/ranklaunch has other bytes"
    # shellcheck disable=SC2086
    $3 >"$work/said" 2>&1 || fail "$3: $(cat "$work/said")"
    after=$(files "$environment")
    [ "$before" = "$after" ] || fail "removed, and still there: $(diff <(echo "$before") <(echo "$after"))"
}

# The oldest, the newest and one between of those that run without a root of their own.
mapfile -t pythons < <("$here/../python/releases.sh" | awk '$2 == "/" && !seen[$1]++ { print $3 }')
# Debian's may lack what makes environments.
usable=()
for python in "${pythons[@]}"; do
    if "$python" -c 'import venv, ensurepip' 2>/dev/null; then usable+=("$python"); fi
done
[ ${#usable[@]} -gt 0 ] || fail "no Python here makes environments: apt-get install python3-venv"
last=$((${#usable[@]} - 1))
for python in $(printf '%s\n' "${usable[0]}" "${usable[last / 2]}" "${usable[last]}" | uniq); do
    "$python" -m venv --clear "$work/pip"
    installed "$work/pip" "$work/pip/bin/pip install $wheel" "$work/pip/bin/pip uninstall -y ranklaunch"
    echo "wheel: installed by $("$work/pip/bin/pip" --version | sed 's/ from .*(/ of /; s/)$//'), runs, python -m ranklaunch too, removed without a trace"
    newest=$python
done

# What pip takes for other systems, and what `--target` lays elsewhere.
for system in manylinux2014 musllinux_1_1; do
    "$work/pip/bin/pip" install -q --platform "${system}_$arch" --only-binary :all: --target "$work/$system" "$wheel"
    runs env "PYTHONPATH=$work/$system" "$work/pip/bin/python" -m ranklaunch
done
other=$work/$(basename "${wheel//$arch/riscv64}")
cp "$wheel" "$other"
if "$work/pip/bin/pip" install "$other" >"$work/said" 2>&1; then fail "the control passes: a wheel for another machine"; fi
grep -q 'not a supported wheel' "$work/said" || fail "the control: $(cat "$work/said")"
echo "wheel: pip takes it for manylinux2014 and musllinux_1_1, and for no other machine"

uv=$(command -v uv) || {
    cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch/uv
    uv=$cache/bin/uv
    [ -x "$uv" ] || { python3 -m venv "$cache" && env -u PIP_NO_INDEX "$cache/bin/pip" install -q uv; }
}
"$uv" venv -q --python "$newest" "$work/uv"
installed "$work/uv" "$uv pip install --python $work/uv/bin/python $wheel" "$uv pip uninstall --python $work/uv/bin/python ranklaunch"
UV_CACHE_DIR=$work/cache runs "$uv" tool run -q --python "$newest" --from "$wheel" ranklaunch
echo "wheel: installed by $("$uv" --version), runs, uv tool run too, removed without a trace"

for conda in micromamba mamba conda ''; do if [ -z "$conda" ] || command -v "$conda" >/dev/null; then break; fi; done
if [ -z "$conda" ]; then
    echo "left out: the wheel in an environment of conda: no micromamba, mamba or conda on the PATH"
    exit 0
fi
"$conda" create -q -y -p "$work/conda" python pip >"$work/said" 2>&1 || fail "$conda: $(cat "$work/said")"
installed "$work/conda" "$work/conda/bin/pip install $wheel" "$work/conda/bin/pip uninstall -y ranklaunch"
echo "wheel: installed in an environment of $conda, runs, removed without a trace"
