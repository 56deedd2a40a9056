#!/bin/bash
export WANDB_MODE=offline
STAGE=3
accelerate launch \
    --mixed_precision bf16 \
    --num_machines 2 \
    --num_processes 16 \
    --machine_rank $NODE_RANK \
    --main_process_ip $MASTER_ADDR \
    --main_process_port 29501 \
    --use_deepspeed \
    --deepspeed_config_file configs/zero$STAGE.json \
    finetune.py --lr 1e-4 --run "$(date +%F)"
