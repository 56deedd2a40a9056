#!/usr/bin/env bash
# One script on every node of a platform, which sets WORLD_SIZE, RANK, MASTER_ADDR and MASTER_PORT.
set -euo pipefail
export WORLD_SIZE=${WORLD_SIZE:-1}
export RANK=${RANK:-0}
MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}
MASTER_PORT=${MASTER_PORT:-29500}
GPUS=$(nvidia-smi -L | wc -l)
TOTAL=$((WORLD_SIZE * GPUS))
export CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
export NCCL_SOCKET_IFNAME=eth0,eno1,ens,ib
export NCCL_IB_DISABLE=0
export NCCL_DEBUG=INFO
export NCCL_TIMEOUT=10800
export TORCH_DISTRIBUTED_TIMEOUT=10800
export OMP_NUM_THREADS=8
if [ -f "/opt/miniconda3/etc/profile.d/conda.sh" ]; then
    source /opt/miniconda3/etc/profile.d/conda.sh
fi
conda activate tiny-vae
cd /workspace/my_taehv_training
echo "[INFO] nodes: $WORLD_SIZE, this node: $RANK, GPUs: $GPUS, processes: $TOTAL"
trap 'kill 0' TERM
if [ "$TOTAL" = 16 ]; then
    CONFIG=config_16gpu.py
else
    CONFIG=config.py
fi
until nc -z "$MASTER_ADDR" "$MASTER_PORT"; do
    [ "$RANK" = 0 ] && break
    sleep 5
done
if [ "$RANK" = 0 ]; then
    torchrun --nnodes="$WORLD_SIZE" --node_rank="$RANK" --nproc_per_node="$GPUS" \
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" train.py --config "$CONFIG" 2>&1 | tee logs/train.log
else
    torchrun --nnodes="$WORLD_SIZE" --node_rank="$RANK" --nproc_per_node="$GPUS" \
        --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" train.py --config "$CONFIG"
fi
exit $?
