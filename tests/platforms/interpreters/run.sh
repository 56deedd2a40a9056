#!/bin/bash
# The interpreter that each tool means: run.sh RANKLAUNCH [--list] [CASE...], see ../local/start.sh
#
# uv and virtualenv of the Python registry, environment modules of the distribution, pyenv where the machine has it,
# and the standard library's venv. conda, mamba and pixi are in neither registry: their environments are laid
# out by hand, file by file as these tools make them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
tools=$cache/interpreters
(
    # One installer at a time; what was asked for is written last.
    flock 9
    wanted="uv virtualenv"
    if [ "$(cat "$tools/installed.txt" 2>/dev/null)" != "$wanted" ]; then
        echo "installing $wanted into $tools" >&2
        python3 -c 'import venv, ensurepip' 2>/dev/null || "$here/../../packages.sh" python3 python3-venv
        python3 -m venv --clear "$tools"
        # Without a registry their cases are left out, and say so.
        # shellcheck disable=SC2086
        if "$tools/bin/python" -m pip install --quiet --disable-pip-version-check $wanted; then
            echo "$wanted" >"$tools/installed.txt"
        fi
    fi
) 9>"$cache/interpreters.lock"
if [ "$(id -u)" = 0 ] && ! command -v modulecmd >/dev/null && command -v apt-get >/dev/null; then
    "$here/../../packages.sh" --no-install-recommends environment-modules
fi
export INTERPRETER_TOOLS=$tools/bin
exec "$here/../local/start.sh" interpreters "$@"
