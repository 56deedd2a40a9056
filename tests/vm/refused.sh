# The questions of tests/launch/old_kernels.rs, of a kernel that really lacks what is refused there, or of
# this one with the calls refused. Sourced by init, which owns $bad.

RANK='trap "echo USR1" USR1; trap "echo SAVED; exit 0" TERM; echo READY; while :; do sleep 0.1; done'

# said FILE WORD COUNT: waits until the file holds the word so often.
said() {
    for _ in $(seq 300); do
        if [ "$(grep -c "$2" "$1")" -ge "$3" ]; then return; fi
        sleep 0.1
    done
    echo "BAD: not $3 times $2"
    cat "$1"
    bad=1
}

# is WHAT GOT WANTED
is() {
    if [ "$2" != "$3" ]; then echo "BAD: $1 is \"$2\", not \"$3\""; bad=1; fi
}

# running TEXT: how many processes have it in their command line.
running() {
    for one in /proc/[0-9]*; do tr '\0' ' ' 2>/dev/null <$one/cmdline | grep -F "$1"; done | wc -l
}

# started PREFIX...: a job of two ranks whose guard is $guard and whose console is job.
started() {
    "$@" ranklaunch run --engine direct --device cpu --stale off --grace 20s --log-dir /tmp/logs \
        --nproc-per-node 2 -- sh -c "$RANK" >job 2>&1 &
    guard=$!
    said job READY 2
}

over() { # over CODE
    wait $guard
    is "the code" $? "$1"
    is "what is left" "$(running 'echo SAVED')" 0
}

# as WHAT PREFIX...: all cases, each behind the prefix.
as() {
    echo "== $1: ranks hear USR1 and TERM, a killed agent leaves nothing, plan, clean and init answer"
    shift
    started "$@"
    kill -USR1 $guard
    said job USR1 2
    kill -TERM $guard
    over 143
    is "saved" "$(grep -c SAVED job)" 2

    started "$@"
    # The agent is the guard's child; not every kernel lists children.
    kill -KILL $(for stat in /proc/[0-9]*/stat; do
        set -- $(cat $stat 2>/dev/null)
        if [ "$4" = "$guard" ]; then echo $1; fi
    done)
    over 137
    is "the agent's end" "$(grep -c 'agent was killed by SIGKILL' job)" 1

    "$@" ranklaunch plan --engine command --device cpu -- true >plan 2>&1
    is "plan" $? 0
    is "plan's complaints" "$(grep -c 'not implemented' plan)" 0
    "$@" ranklaunch init --grace 5s -- sh -c '(setsid sleep 61 &); exit 7'
    is "init" $? 7
    is "what init left" "$(running 'sleep 61')" 0

    # A leftover is older than the launcher by the kernel's clock of 10 ms.
    here=$(cat /proc/sys/kernel/random/boot_id):$(readlink /proc/self/ns/pid | tr -dc 0-9)
    (RANKLAUNCH_JOB=gone:$here:4194303:1 setsid sleep 62 &)
    sleep 0.2
    "$@" ranklaunch clean --engine command --device cpu -- true >clean 2>&1
    is "clean" $? 0
    is "what clean left" "$(running 'sleep 62')" 0
}

as "this kernel as it is" env
while read -r errno calls what; do
    as "$what" refuse_calls "$errno" "$calls"
done <<TABLE
ENOSYS 424 as on Linux 5.0
ENOSYS 335 as on Linux 4.18 (RHEL 8)
ENOSYS 314 as on Linux 3.10 (CentOS 7)
EPERM 100000,424,434 as in a sandbox without pidfd
EPERM 100000,424 as where pidfds cannot be signalled
TABLE
