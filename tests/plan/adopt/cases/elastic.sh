torchrun --nnodes=2:2 --nproc_per_node=8 --max_restarts=3 --rdzv_id=job --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29400 \
    train.py
