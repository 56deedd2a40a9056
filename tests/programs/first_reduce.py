# Ranks that add up once, over gloo or what a second argument names, and then write down when that was, in seconds, and
# what memory is theirs, in KiB (PSS), into the file RANK of the folder that their first argument names.
import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    backend = sys.argv[2] if len(sys.argv) > 2 else "gloo"
    if backend == "nccl":
        # For NCCL each rank is on a host of its own, so that all may use one GPU.
        os.environ["NCCL_HOSTID"] = os.environ["RANK"]
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    # It has a name: gloo of torch 2.6 may wait for ever in destroy_process_group, which holds the GIL, for a thread that
    # wants the GIL to free a tensor that Python has dropped.
    ones = torch.ones(1, device="cuda:0" if backend == "nccl" else "cpu")
    dist.all_reduce(ones)
    # NCCL is done once its result is read.
    assert ones.item() == dist.get_world_size()
    at = time.time()
    with open("/proc/self/smaps_rollup") as file:
        memory = next(line.split()[1] for line in file if line.startswith("Pss:"))
    with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
        file.write("%f %s" % (at, memory))
    # The memory of one that has ended would be another's share.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
