"""One rank evaluates on the CPU while the others wait in a barrier."""
# vary: evaluate train
# nest: evaluate

import time

import torch
import torch.distributed as dist

import stage


def evaluate():
    end = time.monotonic() + stage.seconds_to_live()
    weights = torch.rand(128, 128)
    while time.monotonic() < end:
        weights = torch.softmax(weights @ weights, 0)


def train():
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            with stage.busy():
                evaluate()
        dist.barrier()


if __name__ == "__main__":
    train()
