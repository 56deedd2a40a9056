#!/bin/bash
# The start-up script that ranklaunch stands in for, after the guides of its kind:
# environment, GPU count, NCCL settings, conda, checks, choice of configuration,
# torchrun. Only what such scripts do, and nothing of it slower than it has to be.
#
# CONDA_ROOT  installation whose activation is sourced
# CHECKS      0 leaves out the checks that import torch

set -e

echo "=========================================="
echo "multi-node training"
echo "=========================================="

NNODES="${WORLD_SIZE:-1}"
NODE_RANK="${RANK:-0}"
MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
MASTER_PORT="${MASTER_PORT:-29500}"
unset WORLD_SIZE RANK

if command -v nvidia-smi >/dev/null 2>&1; then
    GPUS="$(nvidia-smi --list-gpus | wc -l)"
else
    GPUS=0
fi
NPROC=$((GPUS > 0 ? GPUS : 1))
TOTAL=$((NNODES * NPROC))
echo "[INFO] GPUs per node: $GPUS"
echo "[INFO] node: $NODE_RANK of $NNODES"
echo "[INFO] master: $MASTER_ADDR:$MASTER_PORT"
echo "[INFO] processes: $TOTAL"
if [ "$GPUS" -gt 0 ]; then
    CUDA_VISIBLE_DEVICES="$(seq -s, 0 $((GPUS - 1)))"
    export CUDA_VISIBLE_DEVICES
fi

export NCCL_DEBUG=INFO
export NCCL_IB_TIMEOUT=22
export NCCL_IB_RETRY_CNT=7
INTERFACE="$(ip route show default 2>/dev/null | awk '{print $5; exit}')"
[ -z "$INTERFACE" ] || export NCCL_SOCKET_IFNAME="$INTERFACE"
if command -v ibstat >/dev/null 2>&1; then
    HCAS="$(ibstat -l | paste -sd,)"
    [ -z "$HCAS" ] || export NCCL_IB_HCA="$HCAS"
fi

# shellcheck disable=SC1091
. "$CONDA_ROOT/etc/profile.d/conda.sh"
conda activate training

echo "[INFO] python: $(python --version 2>&1)"
if [ "${CHECKS:-1}" != 0 ]; then
    python -c 'import torch; print("[INFO] torch:", torch.__version__)'
    python -c 'import torch; print("[INFO] GPUs usable:", torch.cuda.is_available())'
fi

pkill -f "[t]rain_that_was_left_behind.py" || true

case $TOTAL in
    16) CONFIG=config_16gpu.py ;;
    8) CONFIG=config_8gpu.py ;;
    *) CONFIG=config.py ;;
esac
echo "[INFO] configuration: $CONFIG"

exec torchrun --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$NPROC" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"
