"""Steps of very different length: some take five times as long as the others, on other ranks each time."""
# vary: compute train
# nest: compute

import time

import torch

import stage


def compute(seconds):
    end = time.monotonic() + seconds
    value = torch.rand(64, 64)
    while time.monotonic() < end:
        value = torch.tanh(value @ value)


def train():
    job = stage.Job()
    long = stage.seconds_to_live() * 0.75
    for step in range(6):
        slow = step % 3 == 1 and stage.RANK == (stage.CULPRIT + step) % stage.WORLD
        if slow:
            with stage.busy():
                compute(long)
        elif step % 3 != 1:
            compute(long / 5 / stage.WORLD)
        job.reduce()


if __name__ == "__main__":
    train()
