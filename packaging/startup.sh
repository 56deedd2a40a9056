#!/bin/bash
# For platforms that start a job as `bash FILE`: STARTUP_SCRIPT=/path/to/startup.sh.
# On a platform that starts the file itself, name the executable instead.
#
# It is beside the executable, the same file on every node. Nothing is read
# from the platform here: ranklaunch does that.
export RANKLAUNCH_PROFILE="${RANKLAUNCH_PROFILE:-wan22}"
# export RANKLAUNCH_CONDA_ENV=my-env

# `exec`, so that the platform's signals reach ranklaunch and its exit code the platform.
exec "$(dirname "$(readlink -f "$0")")/ranklaunch" "$@"
