# Started by `check --torch` once per rank: one all-reduce whose sum is known, then its speed.
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

backend = sys.argv[1]
local = int(os.environ["LOCAL_RANK"])
if backend == "nccl":
    torch.cuda.set_device(local)
    device, count = f"cuda:{local}", 1 << 26
else:
    device, count = "cpu", 1 << 20
dist.init_process_group(backend, timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
ones = torch.full((count,), float(rank + 1), device=device)
dist.all_reduce(ones)
expected = world * (world + 1) / 2
if ones[0].item() != expected or ones[-1].item() != expected:
    sys.exit(f"all-reduce gave {ones[0].item()} and {ones[-1].item()} instead of {expected}")
rounds = 5
if backend == "nccl":
    torch.cuda.synchronize()
dist.barrier()
start = time.monotonic()
for _ in range(rounds):
    dist.all_reduce(ones)
if backend == "nccl":
    torch.cuda.synchronize()
seconds = (time.monotonic() - start) / rounds
if rank == 0:
    # Bytes that every rank sends and receives in a ring, as nccl-tests counts them.
    moved = 4 * count * 2 * (world - 1) / max(world, 1)
    print(f"allreduce {backend} {world} {seconds * 1e3:.2f} {moved / seconds / 1e9:.2f}", flush=True)
dist.destroy_process_group()
