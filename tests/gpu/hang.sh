#!/bin/sh
# A hang of four ranks is judged: who, in which collective, at which line.
#
#   tests/gpu/hang.sh RANKLAUNCH PYTHON FOLDER [nccl|gloo]
#
# Over NCCL the ranks share one GPU. The control is the same job without the hang. With gloo it runs
# anywhere, so that the script itself can be tried without a GPU. Ends with 1 after a failure.
set -u
ranklaunch=$(realpath "${1:?the executable}")
python=${2:?a python that has torch}
out=$(mkdir -p "${3:?a folder for the outputs}" && cd "$3" && pwd)
backend=${4:-nccl}
program=$(cd "$(dirname "$0")" && pwd)/steps.py
line=$(grep -n '# here it stays' "$program" | cut -d: -f1)
failures=0

# how, code, seconds
job() {
    (cd "$out" && NCCL_SOCKET_IFNAME=lo TORCH_NCCL_TRACE_BUFFER_SIZE=2000 timeout -k 10 180 "$ranklaunch" run \
        --lang en --device cpu --env CUDA_VISIBLE_DEVICES=0 --engine direct --nproc-per-node 4 --stale off \
        --python "$python" --hang-after 10s --on-hang end --log-dir "$out/logs" -- "$program" "$backend" "$1") \
        > "$out/$backend.$1.txt" 2>&1
    code=$?
    if [ "$code" = "$2" ]; then echo "ok: $backend, a job that $1: code $code"; else
        echo "FAILED: $backend, a job that $1: code $code, not $2"
        tail -n 40 "$out/$backend.$1.txt"
        failures=$((failures + 1))
    fi
}
says() { # file, words
    if grep -qF "$2" "$out/$1"; then echo "ok: $2"; else
        echo "FAILED: not said: $2"
        sed -n '/stands still/,/^── /p' "$out/$1"
        failures=$((failures + 1))
    fi
}

job ends 0
if grep -q 'stands still' "$out/$backend.ends.txt"; then
    echo "FAILED: a job that goes on was called hung"
    failures=$((failures + 1))
fi
job hangs 91
says "$backend.hangs.txt" "culprit: rank 2 (node 0) never entered all_reduce 21 of group default_pg: load_batch at steps.py:$line"
says "$backend.hangs.txt" "waiting: ranks 0-1, 3"
[ "$failures" = 0 ]
