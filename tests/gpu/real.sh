#!/bin/sh
# Compares ranklaunch's facts about this machine's NVIDIA GPUs with those of nvidia-smi and
# torch, runs a one-GPU NCCL job, judges a hang of four ranks on one GPU, forks ranks that use one, watches a job and
# ends what an earlier one left on the GPU. On a machine without GPUs it prints that it was skipped, and what was searched.
#
#   tests/gpu/real.sh RANKLAUNCH [FOLDER]
#
# FOLDER gets every output, and a capture that `--host-root` replays. Goes on
# after a failure; ends with 1 if there was one. Steps that need torch take
# RANKLAUNCH_TEST_PYTHON, else python3, and are left out where it has none.
set -u

ranklaunch=${1:?the executable}
out=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "$out" ] || out=$work/out
mkdir -p "$out"
failures=0

title() { printf '\n== %s\n' "$*"; }
passed() { printf 'ok: %s\n' "$*"; }
failed() { printf 'FAILED: %s\n' "$*"; failures=$((failures + 1)); }
same() { # what, expected, found
    if [ "$2" = "$3" ]; then passed "$1: $3"; else failed "$1: nvidia-smi or torch say '$2', ranklaunch says '$3'"; fi
}
# Runs a command with a deadline; its output is shown and kept as $out/NAME.
kept() {
    name=$1
    shift
    timeout -k 10 240 "$@" > "$out/$name" 2> "$out/$name.err"
    code=$?
    cat "$out/$name"
    head -c 4000 "$out/$name.err" >&2
    printf '(exit code %s: %s)\n' "$code" "$name"
    return "$code"
}
# Values of a key in the report, one a line, as many as there are GPUs.
values() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$out/check.json" | head -n "$count"; }
column() { awk -F ', *' -v n="$1" '{print $n}' "$out/smi.csv"; }
joined() { tr '\n' ' ' | sed 's/ $//'; }

nodes=$(ls /dev 2>/dev/null | grep -E '^nvidia[0-9]+$' | joined)
proc=$(ls /proc/driver/nvidia/gpus 2>/dev/null | joined)
smi=$(command -v nvidia-smi || true)
if [ -z "$nodes$proc" ] && ! { [ -n "$smi" ] && timeout 60 "$smi" -L 2>/dev/null | grep -q '^GPU '; }; then
    echo "skipped: no NVIDIA GPU (/dev/nvidia[0-9]+: none; /proc/driver/nvidia/gpus: none;" \
        "nvidia-smi: ${smi:-not on the PATH}${smi:+ lists none})"
    exit 0
fi

title "the machine"
uname -srm
head -n 1 /proc/driver/nvidia/version 2>/dev/null
"$ranklaunch" --version || failed "the executable does not run"
echo "device nodes: ${nodes:-none}; /proc: ${proc:-none}"

title "nvidia-smi"
if [ -n "$smi" ] && kept smi.csv "$smi" --format=csv,noheader,nounits \
    --query-gpu=index,uuid,pci.bus_id,memory.total,name,driver_version,compute_mode,persistence_mode,pcie.link.width.current,pcie.link.width.max,temperature.gpu
then
    # Not every driver knows every field of these; they are for reading only.
    kept smi-ecc.csv "$smi" --format=csv --query-gpu=index,ecc.mode.current,ecc.errors.uncorrected.volatile.total,mig.mode.current
    kept smi-processes.csv "$smi" --format=csv --query-compute-apps=gpu_uuid,pid,used_memory
else
    rm -f "$out/smi.csv"
    echo "nothing to compare with: no nvidia-smi, or it failed"
fi

title "ranklaunch check"
kept check.txt "$ranklaunch" check --lang en
kept check.zh.txt "$ranklaunch" check --lang zh > /dev/null
kept check.json "$ranklaunch" check --lang en --format json > /dev/null
code=$?
[ "$code" = 0 ] && passed "check: code 0" || failed "check: code $code"
grep -q '"source": "nvml"' "$out/check.json" && passed "NVML was asked" || failed "NVML was not the source"
began=$(date +%s%N)
for _ in 1 2 3 4 5; do "$ranklaunch" check --format json > /dev/null 2>&1; done
echo "five checks: $((($(date +%s%N) - began) / 1000000)) ms"
"$ranklaunch" check --capture "$work/capture" > /dev/null 2>&1 && tar -C "$work" -czf "$out/capture.tar.gz" capture &&
    passed "captured" || failed "the capture was not written"

count=$(ls /dev | grep -cE '^nvidia[0-9]+$')
if [ -f "$out/smi.csv" ]; then
    title "ranklaunch beside nvidia-smi"
    count=$(grep -c . "$out/smi.csv")
    same "count" "$count" "$(grep -c '"bridges"' "$out/check.json")"
    same "uuid" "$(column 2 | joined)" "$(values uuid | grep '^GPU-' | joined)"
    # 00000000:18:00.0 there, 0000:18:00.0 here.
    same "pci" "$(column 3 | tr 'A-F' 'a-f' | sed 's/^0000//' | joined)" "$(values pci | joined)"
    same "memory, MiB" "$(column 4 | joined)" \
        "$(values memory_total | awk '{printf "%d\n", $1 / 1048576}' | joined)"
    same "driver" "$(column 6 | head -n 1)" "$(count=1; values driver_version)"
fi

title "ranklaunch plan"
kept plan.txt "$ranklaunch" plan --lang en -- true x
kept plan.json "$ranklaunch" plan --lang en --format json -- true x > /dev/null && passed "plan: code 0" ||
    failed "plan: code not 0"
CUDA_VISIBLE_DEVICES='' "$ranklaunch" plan --device gpu -- true x > "$out/hidden.txt" 2>&1
same "code where CUDA_VISIBLE_DEVICES hides all" 80 $?

title "a job with torch"
python=${RANKLAUNCH_TEST_PYTHON:-$(command -v python3 || true)}
if [ -z "$python" ] || ! timeout 120 "$python" -c 'import torch; assert torch.cuda.is_available()' 2> "$out/torch.err"; then
    echo "left out: ${python:-no python3} has no torch that can use this GPU: $(tail -n 1 "$out/torch.err" 2>/dev/null)"
else
    "$python" -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "NCCL", torch.cuda.nccl.version(), torch.cuda.get_device_name(0))'
    first=$(count=1; values uuid)
    for list in 0 0,0 +0 -0 0,99 GPU- "$first" "$first,$first" nothing; do
        wanted=$(CUDA_VISIBLE_DEVICES=$list "$python" -c 'import torch; print(torch.cuda.device_count())' 2>&1 | tail -n 1)
        seen=$(CUDA_VISIBLE_DEVICES=$list "$ranklaunch" check --format json 2>/dev/null |
            awk '/"visible": \[/ {inside = 1} inside && /"gpu":/ {n++} inside && /\]/ {exit} END {print n + 0}')
        same "GPUs by CUDA_VISIBLE_DEVICES=$list" "$wanted" "$seen"
    done
    kept torch.json "$ranklaunch" check --torch --lang en --format json --python "$python" > /dev/null
    grep -A3 '"id": "torch.allreduce"' "$out/torch.json"
    grep -A3 '"id": "torch.allreduce"' "$out/torch.json" | grep -q '"severity": "ok"' &&
        passed "check --torch" || failed "check --torch"
    cat > "$work/nccl.py" <<'PY'
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
ones = torch.ones(1 << 20, device="cuda")
dist.all_reduce(ones)
torch.cuda.synchronize()
print("sum", ones.sum().item() / ones.numel(), torch.cuda.get_device_properties(0).name, flush=True)
dist.destroy_process_group()
PY
    (cd "$work" && kept run.txt "$ranklaunch" run --lang en --python "$python" --nnodes 1 \
        --nproc-per-node 1 --log-dir "$out/logs" -- nccl.py) && grep -q 'sum 1.0' "$out/run.txt" &&
        passed "one rank over NCCL through torchrun" || failed "one rank over NCCL through torchrun"
    title "a hang of four ranks over NCCL on one GPU"
    "$(dirname "$0")/hang.sh" "$ranklaunch" "$python" "$out/hang" &&
        passed "the hang is judged right" || failed "the hang is judged right"
    title "ranks that are forked from a warmed interpreter"
    "$(dirname "$0")/warm.sh" "$ranklaunch" "$python" "$out/warm" &&
        passed "forked ranks use the GPU" || failed "forked ranks use the GPU"
    title "a job is watched, and a rank that a killed torchrun left is ended"
    "$python" "$(dirname "$0")/watched.py" "$ranklaunch" "$python" "$out/watched" &&
        passed "a GPU is watched and freed" || failed "a GPU is watched and freed"
fi

title "$failures failed"
[ "$failures" = 0 ]
