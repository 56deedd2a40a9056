"""Two ranks that wait for a message over gloo.

argv: kind. Kinds: receives (nobody sends), tags (what one sends the other does not receive), sent (the two ends
match, but the link is dead), answers (each waits for the other's answer on a dead link), reduce (no message, but a
collective on a dead link).
"""

import sys

import dead_link
import torch
import torch.distributed as dist

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
other = 1 - rank
for _ in range(3):
    dist.all_reduce(torch.ones(4))
    if rank == 0:
        dist.send(torch.ones(4), other)
    else:
        dist.recv(torch.ones(4), other)
dist.barrier()
# The kernel does not take all of it, so that a send on a dead link does not end either.
large = torch.ones(16 << 20)
if kind in ("sent", "answers", "reduce"):
    dead_link.cut()
if kind == "reduce":
    dist.all_reduce(torch.ones(4))
elif kind == "answers":
    asked = dist.isend(torch.ones(4), other)
    dist.recv(torch.ones(4), other)
elif kind == "receives":
    dist.recv(torch.ones(4), other)  # the line: receives
elif rank == 0:
    dist.send(large, other, tag=1)  # the line: sends
else:
    dist.recv(large, other, tag=2 if kind == "tags" else 1)
print("done", flush=True)
