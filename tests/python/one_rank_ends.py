"""All ranks wait in a collective over gloo but one, which ends.

one_rank_ends.py raise|import|kill|exit RANK
"""

import os
import signal
import sys

import torch
import torch.distributed as dist

from survival import run


def read(sample):
    if sys.argv[1] == "raise":
        raise ValueError(f"sample {sample} has no label")
    if sys.argv[1] == "import":
        import package_that_no_image_has
    if sys.argv[1] == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def train():
    # All ranks are connected.
    dist.all_reduce(value)
    if dist.get_rank() == int(sys.argv[2]):
        read(17)
    dist.all_reduce(value)


dist.init_process_group("gloo")
value = torch.ones(1)
run(train)
