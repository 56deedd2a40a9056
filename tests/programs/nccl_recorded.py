"""Ranks that reduce over an NCCL that is not there: they meet over gloo, and a server in the place of torch's says what
the recorder of NCCL would say. Who waits spins, as a wait for the GPU does.

argv: the torch whose server it is (2.11 or 2.15), hangs or ends. In a job that hangs rank 2 does not come to step 5.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

version, end = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
backend = "nccl2" if version == "2.15" else "nccl"
entered = left = 0


def dump(entries):
    """As torch writes it; without the entries of steps if `entries` is false."""
    status = {"last_enqueued_collective": entered, "last_started_collective": entered, "last_completed_collective": left}
    found = {
        "comm_lib_version": "2.28.9",
        "nccl_comm_state": {},
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}},
        "pg_status": {"0": {name: str(number) for name, number in status.items()}},
        "version": "2.10",
    }
    if entries:
        found["entries"] = [
            {
                "record_id": step - 1,
                "pg_id": 0,
                "process_group": ["0", "default_pg"],
                "collective_seq_id": step,
                "p2p_seq_id": 0,
                "op_id": step,
                "is_p2p": False,
                "profiling_name": backend + ":all_reduce",
                "input_sizes": [[1]],
                "input_dtypes": ["Float"],
                "output_sizes": [[1]],
                "output_dtypes": ["Float"],
                "state": "completed" if step <= left else "started",
                "retired": step <= left,
                "time_created_ns": began[step],
                "timeout_ms": 600000,
            }
            for step in range(1, entered + 1)
        ]
    return found


def empty():
    return {"comm_lib_version": "", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}, "version": "2.10"}


def answer(request):
    handler, _, query = request.split()[1].rpartition("/")[2].partition("?")
    if handler not in ("fr_trace_json", "dump_nccl_trace_json"):
        return None
    # The older one ignores the name of a backend.
    is_nccls = "backend=nccl2" in query if version == "2.15" else handler == "dump_nccl_trace_json"
    if version == "2.15" and handler == "dump_nccl_trace_json":
        is_nccls = False
    return dump("includecollectives=false" not in query) if is_nccls else empty()


def serve(listener):
    while True:
        peer, _ = listener.accept()
        with peer:
            body = answer(peer.recv(1 << 16).decode())
            text = json.dumps(body).encode() if body else b""
            status = "200 OK" if body else "404 Not Found"
            # The asker leaves when its time is over; torch's server serves the next one.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(("HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (status, len(text))).encode() + text)


def take_the_place_of_torch():
    with open("/proc/net/unix") as sockets:
        own = [line.split()[-1] for line in sockets if line.endswith("/%d-%d\n" % (rank, os.getpid()))]
    os.unlink(own[0])
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(own[0])
    listener.listen(16)
    threading.Thread(target=serve, args=(listener,), daemon=True).start()


def load_batch(step):
    if end == "hangs" and rank == 2 and step == 5:
        os.read(os.pipe()[0], 1)  # the line: missing
    time.sleep(0.2)


def synchronize():
    while True:
        pass


began = {}
take_the_place_of_torch()
for step in range(1, 40):
    load_batch(step)
    began[step], entered = time.time_ns(), step
    if end == "hangs" and step == 5:
        synchronize()
    dist.all_reduce(torch.ones(1))
    left = step
print("all steps are done", flush=True)
