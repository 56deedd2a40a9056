"""Ranks that reduce step by step; at step 20 rank 2 stays in `load_batch`, if argv says `hangs`.

argv: nccl or gloo, hangs or ends. With nccl all ranks of a node share one GPU.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

backend, end = sys.argv[1:]
device = "cuda:0" if backend == "nccl" else "cpu"
if backend == "nccl":
    # For NCCL each rank is on a host of its own, so that all may use one GPU.
    os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    torch.cuda.set_device(0)
dist.init_process_group(backend)


def load_batch(step):
    if end == "hangs" and step == 20 and dist.get_rank() == 2:
        time.sleep(3600)  # here it stays
    return torch.ones(1024, device=device)


for step in range(40):
    batch = load_batch(step)
    dist.all_reduce(batch)
    assert batch[0].item() == dist.get_world_size()
print("all steps are done", flush=True)
dist.destroy_process_group()
