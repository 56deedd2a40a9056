#!/bin/sh
# The executable of another processor, under qemu-user: emulated.sh EXECUTABLE FOLDER, as root of a user namespace whose
# kernel lets it register interpreters (Linux 6.7). Ends with 77 where it does not.
set -eu
executable=$1 work=$2
register=/proc/sys/fs/binfmt_misc/register
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null && [ -e $register ] ||
    { echo "this kernel registers no interpreters in a user namespace"; exit 77; }
# The magic of an ELF file for aarch64, without regard to its ABI and to whether it may be loaded anywhere.
printf '%s' ':aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:OF' > $register ||
    { echo "this kernel does not take the interpreter"; exit 77; }
export QEMU_LD_PREFIX=/usr/aarch64-linux-gnu
# The emulator looks below this prefix for what it opens, but not for what statx(2) is asked about.
libs=$(readlink -f /lib)
mount -t overlay overlay -o "lowerdir=$libs:/usr/aarch64-linux-gnu/lib" "$libs" 2>/dev/null ||
    { echo "this kernel mounts no overlay in a user namespace"; exit 77; }
cd "$work"
fail() { echo "$*"; exit 1; }
version=$("$executable" --version)
case $version in *aarch64-linux-gnu,\ static*) ;; *) fail "--version: $version" ;; esac
echo "aarch64: $(echo "$version" | head -n 1)"
"$executable" plan --device cpu --engine direct --nproc-per-node 2 --format json -- /bin/sh -c true > plan.json || fail "plan: $?"
python3 -c 'import json; plan = json.load(open("plan.json")); assert plan["world_size"] == 2, plan'
echo "aarch64: plans two ranks"
# Its node-probe, below the emulator as well: by itself it is not asked where there is no sign of a driver.
answers() {
    "$executable" check --probe file --engine command --format json -- job > check.json || true
    python3 -c '
import json
gpus = json.load(open("check.json"))["facts"]["gpus"]
why = [why["en"] for source, why in gpus["attempts"] if source == "nvml"]
assert why and "no NVML library" in why[0], gpus
print("aarch64: the node-probe answers:", *why)'
}
# qemu 7.2 loads one of five in vain and ends with 127.
answers 2> said || answers 2> said || answers 2> said || fail "the node-probe does not answer: $(cat said)"
ran() {
    "$executable" run --device cpu --engine direct --nproc-per-node 2 --stale off --log-dir "$1" -- /bin/sh -c "$2" > out 2> err
}
code=0; ran logs 'echo rank $RANK of $WORLD_SIZE' || code=$?
# qemu-user lacks PR_SET_CHILD_SUBREAPER up to 7.2 at least, and without it nothing may start.
if [ $code = 70 ] && grep -q "cannot start the guard process: Invalid argument" err; then
    echo "aarch64: no job starts, since this emulator makes no process a subreaper"
    exit 0
fi
[ $code = 0 ] || fail "a job of two ranks ends with $code: $(cat out err)"
for rank in 0 1; do grep -q "rank $rank of 2" out || fail "rank $rank wrote nothing: $(cat out err)"; done
python3 -c 'import json; run = json.load(open("logs/latest/node-0/run.json")); assert run["exit_code"] == 0 and len(run["outcome"]["ranks"]) == 2, run'
echo "aarch64: a job of two ranks ran, each by its shim"
# The control: one that fails is not called done.
code=0; ran failed 'exit $((RANK * 3))' || code=$?
[ $code = 3 ] || fail "a rank that ends with 3 makes $code: $(cat out err)"
