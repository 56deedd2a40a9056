"""Ranks that meet in an all_reduce over gloo after each step, of some 15 ms.

steps.py KIND SECONDS

KIND says what rank 1, or LATE_RANK, does besides:
  even       nothing: all ranks do the same
  late       it sleeps 20 ms before each collective
  turns      so does another rank in each step
  throttled  it computes 8 ms before each collective, in the control group RANK_GROUP
"""

import os
import sys
import time

import torch
import torch.distributed as dist

kind, seconds = sys.argv[1], float(sys.argv[2])
odd = int(os.environ.get("LATE_RANK", 1))
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
if kind == "throttled" and rank == odd:
    with open(os.path.join(os.environ["RANK_GROUP"], "cgroup.procs"), "w") as procs:
        procs.write(str(os.getpid()))
data, ends, step = torch.ones(64), time.monotonic() + seconds, 0
go_on = torch.ones(1)
while go_on.item():
    if kind == "throttled" and rank == odd:
        begun = time.process_time()
        while time.process_time() - begun < 0.008:
            pass
    time.sleep(0.015)
    if (kind == "late" and rank == odd) or (kind == "turns" and step % world == rank):
        time.sleep(0.02)
    dist.all_reduce(data)
    data.fill_(1)
    step += 1
    if step == 1:
        print("first step", flush=True)
    if step % 50 == 0:
        go_on.fill_(float(time.monotonic() < ends))
        dist.broadcast(go_on, 0)
dist.destroy_process_group()
