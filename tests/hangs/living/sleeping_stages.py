"""Stages of a pipeline that wait for something else in turn, and pass small messages on."""
# vary: wait_for_data forward train
# nest: wait_for_data forward

import time

import torch
import torch.distributed as dist

import stage


def wait_for_data(seconds):
    time.sleep(seconds)


def forward(value, step, seconds):
    before = (stage.RANK - 1) % stage.WORLD
    if stage.RANK > 0 or step > 0:
        if stage.choice(True, False):
            dist.recv(value, before)
        else:
            dist.irecv(value, before).wait()
    wait_for_data(seconds)
    dist.send(value, (stage.RANK + 1) % stage.WORLD)


def train():
    job = stage.Job()
    job.reduce()
    steps = 2
    with stage.busy():
        for step in range(steps):
            forward(torch.ones(4), step, stage.seconds_to_live() / stage.WORLD / steps)
        if stage.RANK == 0:
            dist.recv(torch.ones(4), stage.WORLD - 1)
    dist.barrier()


if __name__ == "__main__":
    train()
