#!/bin/sh
# Ranks that are forked from a warmed interpreter use a GPU, of which nothing was opened before the fork.
#
#   tests/gpu/warm.sh RANKLAUNCH PYTHON FOLDER [nccl|gloo]
#
# CUDA begins in each of two ranks, and they reduce over NCCL, also where both use one GPU. The control is a
# job that imports a module which begins CUDA: no rank of it is forked. With gloo it runs anywhere, so that the script
# itself can be tried without a GPU; /dev/zero is then what is opened. Ends with 1 after a failure.
set -u
ranklaunch=$(realpath "${1:?the executable}")
python=${2:?a python that has torch}
out=$(mkdir -p "${3:?a folder for the outputs}" && cd "$3" && pwd)
backend=${4:-nccl}
program=$(cd "$(dirname "$0")" && pwd)/forked.py
failures=0

case $backend in
nccl) opens='import torch; torch.cuda.init()' device=/dev/nvidia ;;
*) opens='KEPT = open("/dev/zero")' device=/dev/zero ;;
esac
# Modules in a folder of this name count as installed.
installed=$out/site-packages
mkdir -p "$installed"
echo "$opens" > "$installed/opens_driver.py"

job() { # name, options…
    name=$1
    shift
    (cd "$out" && NCCL_SOCKET_IFNAME=lo PYTHONPATH=$installed XDG_CACHE_HOME=$out/cache timeout -k 10 180 \
        "$ranklaunch" run --lang en --device cpu --env CUDA_VISIBLE_DEVICES=0 --engine direct --nproc-per-node 2 \
        --stale off --python "$python" --log-dir "$out/logs" "$@" -- "$program" "$backend") \
        > "$out/$backend.$name.txt" 2>&1
    code=$?
}
says() { # name, words, times
    count=$(grep -cF "$2" "$out/$backend.$1.txt")
    if [ "$code" = 0 ] && [ "$count" = "$3" ]; then echo "ok: $backend, $1: $2"; else
        echo "FAILED: $backend, $1: code $code, '$2' is said $count times, not $3"
        tail -n 40 "$out/$backend.$1.txt"
        failures=$((failures + 1))
    fi
}

rm -rf "$out/cache"
job forked --warm required
says forked 'is forked and begins with nothing of a GPU' 2
says forked 'reduced 3.0' 2
says forked 'the interpreter has opened nothing of a GPU' 1
job control --warm auto --warm-modules opens_driver
says control "no warm start: what was imported has opened $device" 1
says control 'has its own interpreter' 2
says control 'reduced 3.0' 2
[ "$failures" = 0 ]
