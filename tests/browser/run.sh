#!/bin/sh
# Opens the reports and the READMEs in a real browser: run.sh RANKLAUNCH [FOLDER for pictures]
#
# DOM, landmarks, contrast, colours, widths, keyboard, both languages, light and dark, and that no page asks for
# anything; that no table of a README is too wide. Chromium and GitHub's parser of Markdown are installed where they
# are missing, and torch for the run that hangs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v chromium >/dev/null || command -v google-chrome >/dev/null || "$here/../packages.sh" chromium fonts-noto-cjk
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch/markdown
if ! "$cache/bin/python" -c 'import cmarkgfm' 2>/dev/null; then
    rm -rf "$cache"
    python3 -m venv "$cache"
    "$cache/bin/pip" install -q cmarkgfm
fi
ranklaunch=$1
shift
"$cache/bin/python" -B "$here/readme.py" "$@"
PYTHON=${PYTHON:-$("$here/../python/find.sh" torch numpy)}
export PYTHON
exec python3 "$here/report.py" "$ranklaunch" "$@"
