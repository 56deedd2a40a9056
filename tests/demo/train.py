"""A tiny distributed job: every rank adds its number to the others' with gloo."""

import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {world} on node {os.environ.get('GROUP_RANK', '?')}", flush=True)
for step in range(3):
    value = torch.tensor([float(rank + step)])
    dist.all_reduce(value)
    expected = sum(range(world)) + world * step
    assert value.item() == expected, (value.item(), expected)
    if rank == 0:
        print(f"step {step}: all-reduce gives {value.item():.0f}", flush=True)
    time.sleep(0.2)
dist.destroy_process_group()
