#!/bin/bash
# What is typed on the first of two hosts.
pkill -f generate.py
ps aux | grep generate.py
sleep 5
nohup torchrun \
    --nproc_per_node=5 \
    --nnodes=2 \
    --node_rank=0 \
    --rdzv_id=wan22-job-$(date '+%Y%m%d') \
    --rdzv_backend=c10d \
    --rdzv_endpoint="172.31.0.80:29500" \
    generate.py \
    --task t2v-A14B \
    --size 832*480 \
    --ckpt_dir /Wan2.2-T2V-A14B \
    --dit_fsdp \
    --ulysses_size 10 \
    --prompt "An astronaut turns, the word "ranklaunch" on a rock's surface." \
    --save_file output/video.mp4  > output.log 2>&1 &
wait
