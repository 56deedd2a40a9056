"""Meets the other ranks over gloo, then stands still, while the rank that is first on its node answers as
the RAS of NCCL does (protocol 2 with JSON) at NCCL_RAS_ADDR.

argv: what hangs, what RAS says. Hangs: alike, where all ranks wait in one collective, or elsewhere, where rank 1 does
not come. RAS: even, or the number of a rank that it says is behind. Says what it was asked.
"""

import contextlib
import json
import os
import socket
import sys
import threading

import dead_link
import torch
import torch.distributed as dist

hangs, said = sys.argv[1], sys.argv[2]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
pids = [None] * size
dist.all_gather_object(pids, os.getpid())


def report():
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    ranks = [
        {
            "rank": number,
            "host": "127.0.0.1",
            "pid": pid,
            "cuda_dev": number,
            "nvml_dev": number,
            "status": status,
            "collective_counts": {"AllGather": 7, "AllReduce": 40 if str(number) == said else 42},
        }
        for number, pid in enumerate(pids)
    ]
    communicator = {"hash": "0xae94423cfbb2ef4a", "size": size, "ranks": ranks, "missing_ranks": []}
    return json.dumps({"nccl_version": "2.29.1", "communicators": [communicator]}, indent=2)


def answer(peer):
    with peer, peer.makefile("rw") as lines:
        for line in lines:
            print("RAS was asked: " + line.strip(), flush=True)
            words = line.lower()
            if words.startswith("client protocol"):
                lines.write("SERVER PROTOCOL 2\n")
            elif words.startswith(("timeout", "set format json")):
                lines.write("OK\n")
            elif words.strip() == "verbose status":
                lines.write(report())
                return
            else:
                lines.write("ERROR: Unknown command\n")
            lines.flush()


def serve(listener):
    while True:
        peer, _ = listener.accept()
        # One that leaves early takes nothing from those after it.
        with contextlib.suppress(OSError):
            answer(peer)


if os.environ["LOCAL_RANK"] == "0":
    host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
    threading.Thread(target=serve, args=(socket.create_server((host, int(port))),), daemon=True).start()
dist.barrier()
print("READY", flush=True)
if hangs == "elsewhere" and rank == 1:
    os.read(os.pipe()[0], 1)
# All enter alike and none leaves, so that only NCCL can tell more.
dead_link.cut()
dist.all_reduce(torch.ones(1))  # the line: alike
