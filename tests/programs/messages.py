"""Ranks that wait for a message over gloo.

argv: kind. Kinds of two ranks: receives (nobody sends), operations, batch, threads (the same, with a wait that leaves
no frame of torch, or in a thread), tags (what one sends the other does not receive), sent (the two ends match, but the
link is dead), answers (each waits for the other's answer on a dead link), reduce (no message, but a collective on a
dead link), asleep (rank 1 sends nothing, while rank 0 waits).

pipeline STEPS LAST: stages that pass small messages round, of which one sleeps at a time; in step LAST rank 1 sleeps
for good. balanced STEPS LAST: rank 1 sends to rank 2, both sleep all the time, and rank 0 waits for the end. mixed: four ranks, of which 0 and 1 are in a barrier, and 2 waits for 3, which sleeps.
"""

import sys
import threading
import time

import dead_link
import torch
import torch.distributed as dist

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
world = dist.get_world_size()
small = torch.ones(4)


def nap(seconds):
    time.sleep(seconds)  # the line: nap


def pipeline(steps, last):
    for step in range(steps):
        if rank > 0 or step > 0:
            dist.irecv(small, (rank - 1) % world).wait()
        nap(3600 if step == last and rank == 1 else 0.8)
        dist.send(small, (rank + 1) % world)
    if rank == 0:
        dist.recv(small, world - 1)


def balanced(steps, last):
    for step in range(steps):
        if rank == 1:
            nap(3600 if step == last else 0.8)
            dist.send(small, 2)
        elif rank == 2:
            dist.recv(small, 1)
            nap(0.8)
    if rank == 2:
        dist.send(small, 0)
    elif rank == 0:
        dist.recv(small, 2)


if kind in ("pipeline", "balanced"):
    {"pipeline": pipeline, "balanced": balanced}[kind](int(sys.argv[2]), int(sys.argv[3]))
    sys.exit()
if kind == "mixed":
    dist.barrier()
    if rank == 3:
        nap(3600)
    elif rank == 2:
        dist.recv(small, 3)
    dist.barrier()
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
    dist.recv(small, other)  # the line: receives
elif kind == "operations" or (kind == "asleep" and rank == 0):
    dist.irecv(small, other).wait()  # the line: operations
elif kind == "batch":
    for operation in dist.batch_isend_irecv([dist.P2POp(dist.irecv, small, other)]):
        operation.wait()  # the line: batch
elif kind == "threads":
    receiver = threading.Thread(target=lambda: dist.recv(small, other))  # the line: threads
    receiver.start()
    receiver.join()
elif kind == "asleep":
    nap(3600)
elif rank == 0:
    dist.send(large, other, tag=1)  # the line: sends
else:
    dist.recv(large, other, tag=2 if kind == "tags" else 1)
print("done", flush=True)
