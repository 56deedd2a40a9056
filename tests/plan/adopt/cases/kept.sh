#!/bin/bash
# What ranklaunch does by itself stands beside what it does not.
OUT=$(mkdir -p runs && echo runs)
WANDB_NAME=first
export WANDB_NAME
set -a
SEED=7
set +a
trap 'rm -rf scratch; cp -r runs archive' EXIT
until [ -n "$SEED" ]; do
    sleep 5
done
torchrun --nproc_per_node 2 eval.py --f 'a b' < /dev/null >> out.log 2> >(tee err.log)
torchrun --nproc_per_node 2 eval.py > eval.json
python upload.py eval.json
pkill -f my_server
