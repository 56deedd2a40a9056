#!/bin/sh
# Opens the reports in a real browser: run.sh RANKLAUNCH [FOLDER for pictures]
#
# DOM, landmarks, contrast, colours, widths, keyboard, both languages, light and dark, and that no page asks for
# anything. Chromium is installed where it is missing, and torch for the run that hangs.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v chromium >/dev/null || command -v google-chrome >/dev/null || "$here/../packages.sh" chromium fonts-noto-cjk
PYTHON=${PYTHON:-$("$here/../python/find.sh" torch numpy)}
export PYTHON
exec python3 "$here/report.py" "$@"
