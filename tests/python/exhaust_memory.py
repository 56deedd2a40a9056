"""The last rank holds more and more tensors while the others wait."""

import os
import time

from survival import SURVIVES, run_in_child


def hold():
    import torch

    held = []
    while True:
        held.append(torch.ones(1 << 20))  # 4 MiB each


if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    run_in_child(hold)
else:
    time.sleep(0 if SURVIVES else 300)
