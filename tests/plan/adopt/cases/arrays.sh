#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=1
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    # The port of this host.
    --master_addr localhost
    --master_port 6000
)
MODEL_ARGS="
    --num-layers 12 \
    --hidden-size 512 \
"
MODEL_ARGS+=" --seq-length 1024"
if [ -n "$DEBUG" ]; then
    MODEL_ARGS+=" --debug"
fi
OUTPUT_ARGS=()
torchrun ${DISTRIBUTED_ARGS[@]} pretrain.py \
    ${MODEL_ARGS} "${OUTPUT_ARGS[@]}" \
    --save "$CHECKPOINT_PATH"
