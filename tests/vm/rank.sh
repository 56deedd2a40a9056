#!/bin/sh
# rank.sh [hog]: says READY and stays; as a hog rank 1 takes more memory than there is.
#
# With SLOW it holds so many bytes of files in memory for two seconds first, as a loader
# does that fills up; with SUB it is in a control group of its own below the launcher's.
echo "READY $RANK"
if [ "${1-}" = hog ] && [ "$RANK" = 1 ]; then
    [ -z "${SUB-}" ] || echo $$ >/sys/fs/cgroup/job/sub/cgroup.procs
    if [ -n "${SLOW-}" ]; then
        head -c "$SLOW" /dev/zero >/dev/shm/full
        sleep 2
    fi
    exec dd if=/dev/zero of=/dev/null bs=300M count=1
fi
sleep "${STAY:-60}"
