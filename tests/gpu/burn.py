"""Multiplies and reduces for a number of seconds on the GPU, or with gloo on the CPU.

argv: nccl or gloo, seconds. Prints READY once it has reduced.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

backend, seconds = sys.argv[1], float(sys.argv[2])
device, size = ("cuda:0", 4096) if backend == "nccl" else ("cpu", 256)
if backend == "nccl":
    torch.cuda.set_device(0)
dist.init_process_group(backend)
matrix = torch.full((size, size), 1 / size, device=device)


def burn():
    product = matrix
    for _ in range(50):
        product = product @ matrix
    dist.all_reduce(product)
    return product[0, 0].item()


over = torch.zeros(1, device=device)
burn()
print("READY", os.getpid(), flush=True)
began = time.monotonic()
while not over.item():
    burn()
    over += time.monotonic() - began > seconds
    dist.all_reduce(over)
print("burnt", flush=True)
dist.destroy_process_group()
