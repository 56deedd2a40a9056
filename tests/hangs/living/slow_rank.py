"""One rank is slow in every step, and only slow."""
# vary: forward train
# nest: forward

import time

import torch
import torch.distributed as dist

import stage


def forward(seconds):
    end = time.monotonic() + seconds
    value = torch.rand(64, 64)
    while time.monotonic() < end:
        value = torch.tanh(value @ value)


def train():
    job = stage.Job()
    with stage.busy():
        for step in range(4):
            if stage.is_culprit():
                # Longer than the threshold in one of them.
                forward(stage.seconds_to_live() / 4 * (2 if step == 2 else 2 / 3))
            job.reduce()
            dist.barrier()


if __name__ == "__main__":
    train()
