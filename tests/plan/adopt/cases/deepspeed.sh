#!/bin/bash
port=$(shuf -i25000-30000 -n1)
for lr in 1e-5 2e-5; do
    deepspeed --include localhost:2,3 --master_port "$port" train.py \
        --deepspeed zero2.json --lr $lr > train.log 2>&1
done
deepspeed --num_gpus=4 --module package.eval --out 'a b'
deepspeed train.py --deepspeed_config zero3.json
