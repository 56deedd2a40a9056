"""Ranks that add up their numbers over gloo, STEPS times; READY after the first."""

import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
for step in range(int(sys.argv[1])):
    value = torch.tensor([float(rank + step)])
    dist.all_reduce(value)
    expected = sum(range(world)) + world * step
    assert value.item() == expected, (value.item(), expected)
    if step == 0:
        print(f"READY: the sum of {world} ranks is {value.item():.0f}", flush=True)
    time.sleep(0.05)
dist.destroy_process_group()
