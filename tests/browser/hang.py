"""Ranks that reduce by gloo; rank 3 does not come to the sixth step."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(1, 60):
    if rank == 3 and step == 6:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        print(f"step {step}/60", flush=True)
    time.sleep(0.2)
