#!/bin/sh
# A rank that does what its first argument says, and says READY when it can be hit.
case $1 in
succeed) echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, $MASTER_ADDR:$MASTER_PORT" ;;
exit-7-on-rank-1)
    if [ "$RANK" = 1 ]; then echo "about to fail" >&2; exit 7; fi
    echo READY; exec sleep 300 ;;
segv-on-rank-0)
    if [ "$RANK" = 0 ]; then kill -SEGV $$; fi
    exec sleep 300 ;;
wait) echo READY; exec sleep 300 ;;
# Data loaders and servers that outlive their parent: own session, no environment.
escape)
    setsid env -i sleep 300 &
    (setsid sh -c 'sleep 300 & sleep 300' &)
    echo READY; exec sleep 300 ;;
ignore-term) trap '' TERM INT HUP; echo READY; while :; do sleep 1; done ;;
# A checkpoint takes 3 s after TERM.
checkpoint)
    trap 'i=0; while [ $i -lt 30 ]; do sleep 0.1; i=$((i + 1)); done; echo whole > "$2/checkpoint-$RANK"; echo SAVED; exit 0' TERM
    echo READY; while :; do sleep 0.1; done ;;
# Prints each TERM that comes, and ends 4.5 s after the first.
count-term)
    came=; trap 'came=yes; echo "GOT-TERM"' TERM
    echo READY; while [ -z "$came" ]; do sleep 0.1; done
    i=0; while [ $i -lt 45 ]; do sleep 0.1; i=$((i + 1)); done; echo over ;;
hup) trap 'echo GOT-HUP' HUP; echo READY; while [ ! -e "$2" ]; do sleep 0.1; done; echo over ;;
usr1) trap 'echo GOT-USR1; exit 0' USR1; echo READY; while :; do sleep 0.1; done ;;
# Long lines from every rank at the same time.
lines)
    i=0; while [ $i -lt 500 ]; do echo "rank $RANK line $i $2"; i=$((i + 1)); done ;;
*) echo "unknown: $1" >&2; exit 64 ;;
esac
