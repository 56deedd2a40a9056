"""Two ranks that begin CUDA and reduce once; rank 0 looks at what the interpreter has opened from which they were forked.

argv: nccl, with one GPU for both; or gloo, on CPUs.
"""

import os
import sys

import torch
import torch.distributed as dist


def variable(pid):
    """The name of the interpreter's socket in the variables with which a process was started."""
    try:
        with open("/proc/%s/environ" % pid, "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    return next((entry for entry in entries if entry.startswith(b"RANKLAUNCH_WARM_LISTEN=")), None)


def of_gpu(pid):
    """What of a driver a process has opened or mapped."""
    opened = []
    for name in os.listdir("/proc/%s/fd" % pid):
        try:
            opened.append(os.readlink("/proc/%s/fd/%s" % (pid, name)))
        except OSError:
            # The listing's own descriptor.
            pass
    with open("/proc/%s/maps" % pid) as file:
        opened += [line.split(None, 5)[5].strip() for line in file if len(line.split(None, 5)) > 5]
    return sorted({name for name in opened if name.startswith("/dev/nvidia")})


def main(backend):
    rank, mine = int(os.environ["RANK"]), variable("self")
    if mine is None:
        print("rank", rank, "has its own interpreter", flush=True)
    else:
        begun = torch.cuda.is_initialized() or torch.cuda._is_in_bad_fork() or of_gpu("self")
        print("rank", rank, "is forked and begins with", begun or "nothing of a GPU", flush=True)
    device = "cpu" if backend == "gloo" else "cuda:0"
    # For NCCL each rank is on a host of its own, so that all may use one GPU.
    os.environ["NCCL_HOSTID"] = str(rank)
    dist.init_process_group(backend)
    ones = torch.full((1 << 10,), rank + 1.0, device=device)
    if device != "cpu":
        assert (ones * 2).sum().item() == (rank + 1.0) * 2048
        assert of_gpu("self"), "CUDA has begun, and nothing of it is seen"
    dist.all_reduce(ones)
    print("rank", rank, "reduced", ones[0].item(), flush=True)
    pids = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    if rank == 0 and mine is not None:
        others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in pids]
        found = [pid for pid in others if variable(pid) == mine]
        assert len(found) == 1, found
        print("the interpreter has opened", ", ".join(of_gpu(found[0])) or "nothing of a GPU", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
