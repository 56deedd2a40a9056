#!/usr/bin/env bash
PYTHON=${PYTHON:-"python"}
CONFIG=$1
GPUS=$2
source ~/miniconda3/etc/profile.d/conda.sh
conda activate mm
OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=0,2 nohup $PYTHON -m torch.distributed.launch --nproc_per_node=$GPUS \
    --master_port=29501 tools/train.py $CONFIG --launcher pytorch ${@:3} > train.log &
wait
