#!/bin/bash
run() {
    local name=$1
    shift
    torchrun --standalone --nproc_per_node=gpu train.py --name "$name" "$@"
}
run first --lr 1e-3
run second
