#!/bin/bash
# Everything here is known, so a profile replaces all of it.
set -e
export TOKENIZERS_PARALLELISM=false
export MASTER_PORT=29501
export PYTHONUNBUFFERED=1
LR=1e-4
OUT="runs/a b"
cd /workspace
torchrun --nproc_per_node 4 --master_port $MASTER_PORT --max_restarts 1 train.py \
    --lr $LR --out "$OUT" \
    --size 832*480 --note 'it is 8"' 2>&1 | tee train.log
