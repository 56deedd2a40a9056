#!/bin/sh
# Stands in for a python that has an engine, with the engine's own surprises.
#
# BEGIN lists the ranks that it starts, each as RANK:LOCAL_RANK:WORLD_SIZE with
# nothing where the variable is not set. SAY goes to standard error instead, PORT in
# it replaced by the master port: once the file WAIT exists, and not again where ONCE
# names a file.
[ "$1" = -c ] && exit 0
port=
while [ $# -gt 0 ]; do
    case $1 in
    --master_port | --master-port) port=$2 ;;
    --no_python | --no-python) shift; break ;;
    esac
    shift
done
while [ -n "$WAIT" ] && [ ! -e "$WAIT" ]; do sleep 0.02; done
if [ -n "$SAY" ] && [ ! -e "${ONCE:-/nowhere}" ]; then
    [ -z "$ONCE" ] || : >"$ONCE"
    printf '%s\n' "$SAY" | sed "s/PORT/$port/" >&2
    exit 1
fi
pids=
for one in $BEGIN; do
    rank=${one%%:*}; rest=${one#*:}; local_rank=${rest%%:*}; world=${rest#*:}
    (
        unset RANK LOCAL_RANK WORLD_SIZE
        [ -z "$rank" ] || export RANK="$rank"
        [ -z "$local_rank" ] || export LOCAL_RANK="$local_rank"
        [ -z "$world" ] || export WORLD_SIZE="$world"
        exec "$@"
    ) &
    pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=1; done
exit $code
