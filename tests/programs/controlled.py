"""Says what the launcher has put into this rank, which meets the others once over gloo."""

import atexit
import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys

BEFORE = sorted(name for name in os.environ if name.startswith("RANKLAUNCH_"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def sockets(pid):
    """The Unix sockets that are called RANK-PID."""
    with open("/proc/net/unix") as file:
        paths = [line.split()[-1] for line in file]
    return sorted({path for path in paths if path.endswith(f"-{pid}")})


def stacks():
    """The file for the stacks of this process."""
    try:
        return [os.readlink("/proc/self/fd/1000")]
    except OSError:
        return []


def ask(path, handler):
    connection = http.client.HTTPConnection("rank")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(path)
    connection.request("POST", f"/handler/{handler}")
    return connection.getresponse().read()


def of_a_worker():
    return ["RANKLAUNCH_CONTROL" in os.environ, len(sockets(os.getpid()))]


def main():
    dist.init_process_group("gloo")
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    rank = dist.get_rank()
    found = sockets(os.getpid())
    said = {
        "rank": rank,
        "variables": [name for name in BEFORE if name in os.environ],
        "path": [folder for folder in sys.path if folder.endswith("inject/python")],
        "users_sitecustomize": hasattr(sys, "users_sitecustomize"),
        "sockets": [os.path.basename(path).replace(str(os.getpid()), "PID") for path in found],
        "folder_mode": [oct(os.stat(os.path.dirname(path)).st_mode & 0o777) for path in found],
        "pong": [ask(path, "ping").decode() for path in found],
        "stacks": [os.path.basename(path).replace(str(os.getpid()), "PID") for path in stacks()],
    }
    if hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
        # Older ones record no collectives of gloo.
        status = [json.loads(ask(path, "fr_trace_json"))["pg_status"]["0"] for path in found]
        said["enqueued"] = [int(one["last_enqueued_collective"]) for one in status]
    if rank == 0:
        # A program of the rank starts none of its own, and a forked child takes the parent's with it.
        child = "import os, torch.distributed; print(os.getpid(), 'RANKLAUNCH_CONTROL' in os.environ); input()"
        started = subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        pid, controlled = started.stdout.readline().split()
        said["child"] = [controlled, len(sockets(pid))]
        started.communicate("\n")
        # So does a worker that is spawned, as those of a DataLoader may be.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            said["spawned"] = pool.apply(of_a_worker)
        if os.fork() == 0:
            # Its exit handlers are its parent's; the threads of gloo are not there.
            atexit._run_exitfuncs()
            os._exit(0)
        os.wait()
        said["after_the_fork"] = len([path for path in found if os.path.exists(path)])
    # Kept, since a thread of gloo that drops the last reference to a tensor wants the GIL, which destroy_process_group() of
    # older torches holds while it waits for that thread.
    last = dist.barrier(async_op=True)
    last.wait()
    # In one piece, since ranks may share a pipe.
    os.write(1, json.dumps(said).encode() + b"\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
