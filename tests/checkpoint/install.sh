#!/bin/bash
# Installs the frameworks whose checkpoints `make judge-checkpoints` writes and loads (1 GB, once), into an environment
# of the user's cache folder that sees the packages of the environment with torch. Prints its interpreter.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=$("$here/../python/find.sh" torch numpy accelerate)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ranklaunch
mkdir -p "$cache"
here=$here/../platforms/engines
. "$here/environments.sh"
# deepspeed compiles nothing while it is installed.
export DS_BUILD_OPS=0
python=$(environment writers "$base" transformers==5.24.0 lightning==2.6.6 deepspeed==0.19.8 megatron-core==0.16.1)
echo "${python:?the frameworks do not install here}"
