"""Ranks over gloo that stand still in a known way, and the flight recorder's record of each.

records.py KIND FOLDER

Rank 1 is the odd one. KIND:
  fine        all collectives are done
  slow        so they are, but rank 1 comes 20 ms late to each
  running     all_reduce after all_reduce, and each rank is read at another step
  never       rank 1 does not come to an all_reduce
  collective  rank 1 calls a broadcast, the others an all_reduce
  shape       rank 1 has fewer elements than the others
  inversion   ranks 0 and 1 use two groups in opposite order, the others wait for both
  chain       rank 0 waits for rank 1 in a group of both, the others wait for both
  stopped     rank 1 is stopped (SIGSTOP) and gives no record

Each rank writes FOLDER/comm_lib_trace_rank_N, the pickle with stacks that torch writes by itself when
a collective times out, and FOLDER/rank_N.json, the answer of its worker server.
"""

import json
import os
import pathlib
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

ODD = 1
kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
deadline = time.monotonic() + 60
# The thread that reads the record may begin: the main thread does what it does last. Then the
# number of entries before that, or None where it enters none.
last = threading.Event()
entries_before = None


def entries():
    return json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", [])


def wait_until(holds):
    while not holds():
        if time.monotonic() > deadline:
            os._exit(9)
        time.sleep(0.01)


def stands():
    """The rank waits longer than it ever needed from one collective to the next."""
    times = [entry["time_created_ns"] for entry in entries()]
    if len(times) <= entries_before:
        return False
    longest = max((after - before for before, after in zip(times, times[1:])), default=0)
    return time.time_ns() - times[-1] > max(1_500_000_000, 2 * longest)


def answer():
    """What the worker server of this process says."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(folder / f"{rank}.sock"))
        server.sendall(b"POST /handler/fr_trace_json HTTP/1.1\r\nHost: rank\r\n"
                       b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        said = b"".join(iter(lambda: server.recv(65536), b""))
    return said.partition(b"\r\n\r\n")[2]


def write_record():
    (folder / f"rank_{rank}.json").write_bytes(answer())
    (folder / f"comm_lib_trace_rank_{rank}").write_bytes(c10d._dump_fr_trace(True, True, False))


def is_everywhere(name, ranks=range(world)):
    return all((folder / f"{one}.{name}").exists() for one in ranks)


def read_record():
    last.wait()
    if entries_before is not None:
        wait_until(stands)
    (folder / f"{rank}.there").touch()
    wait_until(lambda: is_everywhere("there"))
    write_record()
    end()


def end():
    """All ranks end at once: a rank whose neighbour is gone ends with an exception."""
    (folder / f"{rank}.read").touch()
    wait_until(lambda: is_everywhere("read"))
    os._exit(0)


def does_last(work):
    """`work` is the last that this rank does; it may never return."""
    global entries_before
    entries_before = len(entries())
    last.set()
    work()


def load_batch():
    """Where the odd rank is in place of a collective."""
    last.set()
    threading.Event().wait()


def step():
    dist.all_reduce(value)


def train():
    global entries_before
    steps = {"slow": 40, "running": 200}.get(kind, 6)
    for number in range(steps):
        if kind == "slow" and rank == ODD:
            time.sleep(0.02)
        step()
        if kind == "running" and number == 40 * (rank + 1):
            write_record()
    if kind == "fine":
        gathered = [torch.zeros(4) for _ in range(world)]
        root = gathered if rank == 0 else None
        dist.broadcast(value, 0)
        dist.all_gather(gathered, value)
        dist.barrier()
        dist.gather(value, root, 0)
        dist.scatter(value, root, 0)
        dist.reduce(value, 0)
        dist.all_to_all_single(torch.zeros(4 * world), torch.zeros(4 * world))
        if rank <= ODD:
            dist.all_reduce(value, group=pair)
        step()
    if kind in ("fine", "slow"):
        last.set()
    if kind == "running":
        end()
    if kind == "never":
        load_batch() if rank == ODD else does_last(step)
    if kind == "collective":
        does_last((lambda: dist.broadcast(value, 0)) if rank == ODD else step)
    if kind == "shape":
        # gloo ends a process that receives more than it expects. So the odd rank stops before
        # anything reaches it; NCCL would let all wait.
        if rank == ODD:
            dist.all_reduce(torch.ones(2), async_op=True)
            write_record()
            stop()
        wait_until(lambda: is_everywhere("there", [ODD]))
        does_last(step)
    if kind == "inversion":
        mine = [pair, other_pair] if rank == 0 else [other_pair, pair]
        does_last(lambda: dist.all_reduce(value, group=mine[0]) if rank <= ODD else step())
    if kind == "chain":
        if rank == ODD:
            load_batch()
        does_last(lambda: dist.all_reduce(value, group=pair) if rank == 0 else step())
    if kind == "stopped":
        if rank == ODD:
            stop()
        does_last(step)


def stop():
    """Stops this process. Rank 0 lets it go on when all others are read."""
    (folder / f"{rank}.pid").write_text(str(os.getpid()))
    (folder / f"{rank}.there").touch()
    os.kill(os.getpid(), signal.SIGSTOP)
    end()


def wake():
    """Rank 0: the stopped rank goes on once all others are read."""
    wait_until(lambda: is_everywhere("read", [one for one in range(world) if one != ODD]))
    os.kill(int((folder / f"{ODD}.pid").read_text()), signal.SIGCONT)


server = c10d._WorkerServer(str(folder / f"{rank}.sock"))
dist.init_process_group("gloo")
pair = dist.new_group([0, ODD])
other_pair = dist.new_group([0, ODD])
value = torch.ones(4)
threading.Thread(target=read_record, daemon=True).start()
if rank == 0 and kind in ("shape", "stopped"):
    threading.Thread(target=wake, daemon=True).start()
try:
    train()
except RuntimeError:
    # Another rank has ended.
    pass
threading.Event().wait()
