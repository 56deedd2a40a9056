MASTER_ADDR=localhost
NNODES=1
export LAUNCHER="torchrun \
    --nproc_per_node=4 \
    --nnodes=$NNODES \
    --master_addr=$MASTER_ADDR \
    --max-restarts 2 \
    "
export CMD="scripts/train.py --config configs/a.py"
echo $LAUNCHER
bash -c "$LAUNCHER $CMD"
