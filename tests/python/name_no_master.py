"""The host name of the master is known to no resolver."""

import datetime
import os

import torch.distributed as dist

from survival import run


def join():
    os.environ["MASTER_ADDR"] = "train-master-0"
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))


run(join)
